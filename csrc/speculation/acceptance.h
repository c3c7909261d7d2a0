// Speculative sampling: whether a drafted token stands, and what replaces it, so that the token committed is distributed
// as the target says, whatever proposed the draft (Leviathan et al. 2023; Chen et al. 2023).
#pragma once

#include <cstdint>

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

int32_t draw(const Distribution & p, Random & random);

// The drafted token where u q < p for a uniform u, else a draw from max(p - q, 0), normalised.
int32_t judge(const Distribution & p, const Proposal & proposal, Random & random);

}  // namespace pd2
