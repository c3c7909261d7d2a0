#pragma once

#include <string>

namespace pd2 {

// Throws PD2_ERROR_MODEL_FILE unless the file is a GGUF model that could be a target; returns its architecture. Reads
// the metadata only: llama.cpp loads heads, projectors and adapters too, and then aborts or babbles.
std::string check_target_file(const std::string & path);

}  // namespace pd2
