#include "logprobs.h"

#include <cmath>
#include <numeric>

#include "target/row.h"

namespace pd2 {

void Logprobs::add(const float * logits, int32_t n_vocab, int32_t token) {
    const Row                 row(logits, n_vocab, {});
    const std::vector<double> masses    = row.masses(1);
    const double              total     = std::accumulate(masses.begin(), masses.end(), 0.0);
    const double              log_total = static_cast<double>(row.top()) + std::log(total);
    const auto of = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_total); };

    chosen.push_back(of(logits[token]));
    for (const Candidate & candidate : row.likeliest(static_cast<size_t>(n_top))) {
        top_tokens.push_back(candidate.token);
        top.push_back(of(candidate.logit));
    }
}

void Logprobs::clear() {
    chosen.clear();
    top_tokens.clear();
    top.clear();
}

}  // namespace pd2
