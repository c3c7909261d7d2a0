// What llama.cpp loaded without complaint, and would still come to grief over: checked once, before anything is computed.
#pragma once

#include <string>
#include <vector>

#include "ggml-backend.h"

struct ggml_cgraph;
struct llama_model;
struct llama_vocab;

namespace pd2 {

// Throws PD2_ERROR_MODEL_FILE for a vocabulary whose tokenizer would never end.
void check_vocabulary(const llama_vocab * vocab, const std::string & path);

// Throws PD2_ERROR_MODEL_FILE where a step of the model's graph would abort or crash on the CPU: on another thread than
// ours, where nothing can be caught. `graph` as llama.cpp reserved it; devices: those the model runs on.
void check_graph(ggml_cgraph * graph, const std::vector<ggml_backend_dev_t> & devices, const std::string & path);

// Of the cache of one text of so many tokens; windowed layers keep as many as `windowed` says.
double cache_bytes(const llama_model & model, ggml_type type, int32_t n_tokens, int32_t windowed);

}  // namespace pd2
