// The candidate selector's walk over a lattice: one coherent path, position by position.
#pragma once

#include <cstdint>
#include <vector>

#include "drafter/drafter.h"

namespace pd2 {

struct Path {
    std::vector<int32_t> tokens;         // [n]
    std::vector<float>   probabilities;  // [n] softmax of the scores after the predecessor, at the token chosen
};

// Argmax at every position, given the token chosen before it. Ties go to the candidate listed first.
Path walk_greedily(const Lattice & lattice);

}  // namespace pd2
