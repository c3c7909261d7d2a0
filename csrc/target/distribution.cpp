#include "distribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace pd2 {

namespace {

// Probabilities below exp(-kNegligible) of the largest are left out: a whole vocabulary of them weighs less than the
// rounding of one float, and most of a vocabulary is of that kind.
constexpr double kNegligible = 40;

}  // namespace

Distribution::Distribution(const std::vector<Candidate> & candidates, float temperature)
    : temperature_(static_cast<double>(temperature)), total_(0) {
    const auto less = [](const Candidate & a, const Candidate & b) { return a.logit < b.logit; };
    top_            = static_cast<double>(std::max_element(candidates.begin(), candidates.end(), less)->logit);
    for (const Candidate & candidate : candidates) {
        if (const double w = weight(candidate.logit); w > 0) {
            tokens_.push_back(candidate.token);
            probabilities_.push_back(w);
            total_ += w;
        }
    }
    for (double & probability : probabilities_) {
        probability /= total_;
    }
}

Distribution::Distribution(Row row, float temperature)
    : top_(static_cast<double>(row.top())),
      temperature_(static_cast<double>(temperature)),
      row_(std::move(row)),
      masses_(row_.masses(temperature)) {
    total_ = std::accumulate(masses_.begin(), masses_.end(), 0.0);
    for (double & mass : masses_) {
        mass /= total_;
    }
}

double Distribution::of(int32_t token) const {
    if (!masses_.empty()) {
        return weight(row_.of(token)) / total_;
    }
    const auto found = std::find(tokens_.begin(), tokens_.end(), token);
    return found == tokens_.end() ? 0 : probabilities_[static_cast<size_t>(found - tokens_.begin())];
}

size_t Distribution::block_of(int32_t token) const {
    return masses_.empty() ? 0 : static_cast<size_t>(token) / Row::kBlock;
}

void Distribution::list(size_t block, std::vector<int32_t> & tokens, std::vector<double> & probabilities) const {
    if (masses_.empty()) {
        tokens        = tokens_;
        probabilities = probabilities_;
        return;
    }
    tokens.clear();
    probabilities.clear();
    float         scratch[Row::kBlock];
    const float * logits = row_.block(block, scratch);
    for (size_t i = 0; i < row_.size(block); ++i) {
        const double w = weight(logits[i]);
        if (w > 0) {
            tokens.push_back(Row::first(block) + static_cast<int32_t>(i));
            probabilities.push_back(w / total_);
        }
    }
}

double Distribution::weight(float logit) const {
    const double exponent = (static_cast<double>(logit) - top_) / temperature_;
    return exponent < -kNegligible ? 0 : std::exp(exponent);
}

}  // namespace pd2
