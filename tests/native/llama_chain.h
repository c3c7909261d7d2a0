// llama.cpp's own sampler chain over a whole vocabulary, for programs that compare ours with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "llama.h"
#include "target/sampler.h"

struct FreeModel {
    void operator()(llama_model * model) const { llama_model_free(model); }
};
struct FreeSampler {
    void operator()(llama_sampler * sampler) const { llama_sampler_free(sampler); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;
using Chain = std::unique_ptr<llama_sampler, FreeSampler>;

// A file that says no more than how many tokens there are.
inline Model load_vocabulary(const char * path) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model_params params = llama_model_default_params();
    params.vocab_only         = true;
    params.n_gpu_layers       = 0;
    Model model(llama_model_load_from_file(path, params));
    if (!model) {
        std::fprintf(stderr, "%s cannot be loaded\n", path);
        std::exit(1);
    }
    return model;
}

// In our order, which is its default one, without the grammar: what comes before a grammar would, and what comes after it.
// The temperature is left to the caller.
inline void add_adjustments(llama_sampler & chain, int32_t n_vocab, const pd2::SamplingParams & params,
                            int32_t context_size) {
    std::vector<llama_logit_bias> bias;
    for (const auto & [token, value] : params.logit_bias) {
        bias.push_back({token, value});
    }
    if (!bias.empty()) {
        llama_sampler_chain_add(&chain,
                                llama_sampler_init_logit_bias(n_vocab, static_cast<int32_t>(bias.size()), bias.data()));
    }
    const int32_t last_n = params.penalty_last_n < 0 ? context_size : std::min(params.penalty_last_n, context_size);
    llama_sampler_chain_add(&chain, llama_sampler_init_penalties(n_vocab, last_n, params.repeat_penalty,
                                                                 params.frequency_penalty, params.presence_penalty));
}

inline void add_truncations(llama_sampler & chain, const pd2::SamplingParams & params) {
    if (params.top_k > 0) {
        llama_sampler_chain_add(&chain, llama_sampler_init_top_k(params.top_k));
    }
    if (params.typical_p < 1) {
        llama_sampler_chain_add(&chain, llama_sampler_init_typical(params.typical_p, 1));
    }
    if (params.top_p < 1) {
        llama_sampler_chain_add(&chain, llama_sampler_init_top_p(params.top_p, 1));
    }
    if (params.min_p > 0) {
        llama_sampler_chain_add(&chain, llama_sampler_init_min_p(params.min_p, 1));
    }
}

inline Chain make_chain() {
    return Chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
}
