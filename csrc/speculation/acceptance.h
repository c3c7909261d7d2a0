// Speculative sampling: how much of a draft stands, and what follows it, so that the text is distributed as the target
// says, whatever proposed the draft.
#pragma once

#include <cstdint>
#include <vector>

#include "random.h"
#include "target/sampler.h"

namespace pd2 {

// What one token of a draft was drawn from. Without probabilities it was certain.
struct Proposal {
    int32_t         token      = 0;
    int32_t         k          = 0;
    const int32_t * candidates = nullptr;  // [k], the token among them
    const float *   q          = nullptr;  // [k]
};

// Of n tokens, with what each was drawn from: candidates and q, [n, k]. q null: each was certain. They point into these arrays.
std::vector<Proposal> proposals_of(int32_t n, const int32_t * tokens, int32_t k, const int32_t * candidates,
                                   const float * q);

int32_t draw(const Distribution & p, Random & random);

// Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding"): the draft is judged as a
// whole, and of all rules that keep the target's distribution this one accepts most. At temperature 0 it is the longest
// match. A draft may end where its own tokens said, never because of a token that was drawn and then left out.
class Judge {
  public:
    Judge(const std::vector<Proposal> & draft, Random & random) : draft_(draft), random_(random) {}

    // p: of the token after the first `row` drafted ones; row = 0, 1, ... False when no later row can matter.
    bool see(int32_t row, Distribution p);

    int32_t n_accepted() const { return n_accepted_; }

    // What follows the accepted tokens.
    int32_t draw_next();

  private:
    const std::vector<Proposal> & draft_;
    Random &                      random_;
    double                        prefix_     = 1;  // with which the tokens so far would stand if they were all
    int32_t                       n_accepted_ = 0;
    Distribution                  p_;          // of what may follow them
    double                        scale_ = 1;  // by which it counts against the draft's own
};

}  // namespace pd2
