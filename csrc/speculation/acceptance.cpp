#include "acceptance.h"

#include <algorithm>
#include <utility>

namespace pd2 {

namespace {

constexpr int32_t kNoToken = -1;

// What tokens were proposed with; nearly all of a vocabulary with nothing, which one bit test mostly tells.
class Proposed {
  public:
    explicit Proposed(const Proposal & proposal) {
        if (!proposal.q) {
            add(proposal.token, 1);
            return;
        }
        for (int32_t i = 0; i < proposal.k; ++i) {
            add(proposal.candidates[i], static_cast<double>(proposal.q[i]));
        }
    }
    Proposed() = default;  // nothing was

    double of(int32_t token) const {
        if ((seen_ & bit(token)) != 0) {
            for (const auto & [candidate, q] : tokens_) {
                if (candidate == token) {
                    return q;
                }
            }
        }
        return 0;
    }

    const std::vector<std::pair<int32_t, double>> & tokens() const { return tokens_; }

  private:
    void add(int32_t token, double q) {
        if (of(token) > 0) {
            std::find_if(tokens_.begin(), tokens_.end(), [&](const auto & one) {
                return one.first == token;
            })->second += q;
        } else if (q > 0) {
            tokens_.push_back({token, q});
            seen_ |= bit(token);
        }
    }

    static uint64_t bit(int32_t token) { return uint64_t(1) << (static_cast<uint32_t>(token) % 64); }

    std::vector<std::pair<int32_t, double>> tokens_;  // each once
    uint64_t                                seen_ = 0;
};

// max(scale p - q, 0): what p has left where the draft took q. Only the tokens of q need a look, and the block that is drawn from.
class Leftover {
  public:
    Leftover(const Distribution & p, double scale, const Proposed & q) : p_(p), scale_(scale), q_(q) {
        if (p.n_blocks() == 1) {
            list(0);
            for (const double weight : weights_) {
                total_ += weight;
            }
            return;
        }
        total_ = scale;
        for (const auto & [token, q_of] : q.tokens()) {
            const double taken = std::min(scale * p.of(token), q_of);
            taken_.push_back({p.block_of(token), taken});
            total_ -= taken;
        }
        total_ = std::max(total_, 0.0);
    }

    double total() const { return total_; }

    int32_t draw(Random & random) {
        if (p_.n_blocks() == 1) {
            return tokens_[draw_index(weights_, total_, random)];
        }
        double left = random.uniform() * total_;
        for (size_t block = 0; block < p_.n_blocks(); ++block) {
            double mass = scale_ * p_.mass(block);
            for (const auto & [at, taken] : taken_) {
                mass -= at == block ? taken : 0;
            }
            if (left < mass && list(block)) {
                return tokens_[index_at(weights_, left)];
            }
            left = std::max(left - std::max(mass, 0.0), 0.0);
        }
        for (size_t block = p_.n_blocks(); block-- > 0;) {  // what rounding leaves goes to the last that has any
            if (list(block)) {
                return tokens_[index_at(weights_, scale_)];
            }
        }
        return kNoToken;
    }

  private:
    // False where nothing is left of a block.
    bool list(size_t block) {
        p_.list(block, tokens_, weights_);
        bool any = false;
        for (size_t i = 0; i < tokens_.size(); ++i) {
            weights_[i] = std::max(scale_ * weights_[i] - q_.of(tokens_[i]), 0.0);
            any         = any || weights_[i] > 0;
        }
        return any;
    }

    const Distribution &                   p_;
    const double                           scale_;
    const Proposed &                       q_;
    double                                 total_ = 0;
    std::vector<std::pair<size_t, double>> taken_;  // of which block, how much
    std::vector<int32_t>                   tokens_;
    std::vector<double>                    weights_;
};

}  // namespace

std::vector<Proposal> proposals_of(int32_t n, const int32_t * tokens, int32_t k, const int32_t * candidates,
                                   const float * q) {
    std::vector<Proposal> proposals;
    for (int32_t t = 0; t < n; ++t) {
        const size_t row = static_cast<size_t>(t) * static_cast<size_t>(k);
        proposals.push_back(q ? Proposal{tokens[t], k, candidates + row, q + row} : Proposal{tokens[t]});
    }
    return proposals;
}

int32_t draw(const Distribution & p, Random & random) {
    return Leftover(p, 1, {}).draw(random);
}

bool Judge::see(int32_t row, Distribution p) {
    const bool     last   = row == static_cast<int32_t>(draft_.size());
    const Proposed q      = last ? Proposed() : Proposed(draft_[static_cast<size_t>(row)]);
    const double   total  = Leftover(p, last ? 1 : prefix_, q).total();
    const double   stands = row == 0 || prefix_ >= 1 ? 1 : last ? prefix_ : total / (total + 1 - prefix_);
    const double   prefix = prefix_;
    if (!last) {
        const int32_t token = draft_[static_cast<size_t>(row)].token;
        prefix_             = std::min(prefix_ * p.of(token) / q.of(token), 1.0);
    }
    if (random_.uniform() < stands) {
        n_accepted_ = row;
        p_          = std::move(p);
        scale_      = last ? 1 : prefix;
    }
    return !last && prefix_ > 0;
}

int32_t Judge::draw_next() {
    const bool     whole = n_accepted_ == static_cast<int32_t>(draft_.size());
    const Proposed q     = whole ? Proposed() : Proposed(draft_[static_cast<size_t>(n_accepted_)]);
    Leftover       left(p_, scale_, q);
    // No more than rounding is left where p and q agree; the draft goes on then, or p itself is the answer.
    const int32_t token = left.total() > 0 ? left.draw(random_) : kNoToken;
    return token == kNoToken ? draw(p_, random_) : token;
}

}  // namespace pd2
