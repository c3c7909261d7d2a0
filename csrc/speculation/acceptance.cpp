#include "acceptance.h"

#include <algorithm>

namespace pd2 {

namespace {

// What each token of a vocabulary was proposed with; nearly all with nothing, which one bit test mostly tells.
class Proposed {
  public:
    explicit Proposed(const Proposal & proposal) : proposal_(proposal) {
        for (int32_t i = 0; i < proposal.k; ++i) {
            seen_ |= bit(proposal.candidates[i]);
        }
    }

    double of(int32_t token) const {
        if (!proposal_.q) {
            return token == proposal_.token ? 1 : 0;
        }
        double q = 0;
        for (int32_t i = 0; (seen_ & bit(token)) != 0 && i < proposal_.k; ++i) {
            q += proposal_.candidates[i] == token ? static_cast<double>(proposal_.q[i]) : 0;
        }
        return q;
    }

  private:
    static uint64_t bit(int32_t token) { return uint64_t(1) << (static_cast<uint32_t>(token) % 64); }

    const Proposal & proposal_;
    uint64_t         seen_ = 0;
};

}  // namespace

int32_t draw(const Distribution & p, Random & random) {
    return p.tokens[draw_index(p.probabilities, 1, random)];
}

bool Judge::see(int32_t row, const Distribution & p) {
    static const Proposal nothing = {-1};

    const bool          last = row == static_cast<int32_t>(draft_.size());
    const Proposal &    next = last ? nothing : draft_[static_cast<size_t>(row)];
    const Proposed      q(next);
    std::vector<double> weights(p.tokens.size());  // of what follows if the draft ends here
    double              total = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = std::max((last ? 1 : prefix_) * p.probabilities[i] - q.of(p.tokens[i]), 0.0);
        total += weights[i];
    }
    const double stands = row == 0 || prefix_ >= 1 ? 1 : last ? prefix_ : total / (total + 1 - prefix_);
    if (random_.uniform() < stands) {
        n_accepted_ = row;
        tokens_     = p.tokens;
        // No more than rounding is left where p and q agree; the draft goes on then, or p itself is the answer.
        weights_ = total > 0 ? std::move(weights) : p.probabilities;
        total_   = total > 0 ? total : 1;
    }
    if (last) {
        return false;
    }
    prefix_ = std::min(prefix_ * p.of(next.token) / q.of(next.token), 1.0);
    return prefix_ > 0;
}

int32_t Judge::draw_next() {
    return tokens_[draw_index(weights_, total_, random_)];
}

}  // namespace pd2
