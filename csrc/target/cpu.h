#pragma once

#include <cstdint>

namespace pd2 {

// Physical cores this process may run on. Two threads on one core slow ggml's kernels down.
int32_t physical_cores();

// llama.cpp's line of CPU features and back-end switches.
const char * system_info();

}  // namespace pd2
