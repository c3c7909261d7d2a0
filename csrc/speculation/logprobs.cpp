#include "logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pd2 {

void Logprobs::add(const float * logits, int32_t n_vocab, int32_t token) {
    const auto top_logit = static_cast<double>(*std::max_element(logits, logits + n_vocab));
    double     total     = 0;
    for (int32_t i = 0; i < n_vocab; ++i) {
        total += std::exp(static_cast<double>(logits[i]) - top_logit);
    }
    const double log_total = top_logit + std::log(total);
    const auto   of = [&](int32_t id) { return static_cast<float>(static_cast<double>(logits[id]) - log_total); };

    chosen.push_back(of(token));
    if (n_top == 0) {
        return;
    }
    std::vector<int32_t> ids(static_cast<size_t>(n_vocab));
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + n_top, ids.end(),
                      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    for (int32_t i = 0; i < n_top; ++i) {
        top_tokens.push_back(ids[static_cast<size_t>(i)]);
        top.push_back(of(ids[static_cast<size_t>(i)]));
    }
}

void Logprobs::clear() {
    chosen.clear();
    top_tokens.clear();
    top.clear();
}

}  // namespace pd2
