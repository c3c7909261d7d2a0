// The candidate selector's walk over a lattice: one coherent path, position by position.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "drafter/drafter.h"
#include "random.h"
#include "target/sampler.h"

namespace pd2 {

struct Path {
    std::vector<int32_t> tokens;  // [n], n up to the lattice's
    std::vector<float>
        probabilities;               // [n] with which the token was chosen among its candidates; at temperature 0, at 1
    std::vector<float> confidences;  // [n] the largest probability there was: known before the token is drawn
    std::vector<float> proposal;     // [n, k] q: what the tokens were drawn from. Empty: each was certain
};

struct WalkParams {
    float temperature     = 0;  // 0: the likeliest path
    float min_probability = 0;  // the path ends before its probability, with its likeliest next token, falls below this
    pd2_walk kind         = PD2_WALK_ARGMAX;  // at temperature 0

    // Whether to go on, given the confidences so far and the next one; absent: always.
    std::function<bool(const std::vector<float> & so_far, float next)> more = {};
};

// At temperature 0 the path is the one `kind` says, else it is drawn from softmax(score / temperature). A constraint
// takes candidates away; the path ends where none is left. random: used at temperatures above 0 only.
Path walk(const Lattice & lattice, const WalkParams & params, Random & random, Constraint * constraint);

}  // namespace pd2
