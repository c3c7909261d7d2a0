// The target's own log-probabilities, before any sampler.
#pragma once

#include <cstdint>
#include <vector>

namespace pd2 {

struct Logprobs {
    int32_t              n_top = 0;
    std::vector<float>   chosen;      // [n]
    std::vector<int32_t> top_tokens;  // [n, n_top] likeliest first
    std::vector<float>   top;         // [n, n_top]

    // log softmax(logits) at `token` and at the n_top likeliest. logits: [n_vocab]
    void add(const float * logits, int32_t n_vocab, int32_t token);
    void clear();
};

}  // namespace pd2
