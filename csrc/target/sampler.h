// From a row of logits to the distribution the next token is drawn from: llama.cpp's samplers, with the state they keep.
// Drawing is not done here, so that a draft can be judged against the distribution first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distribution.h"

namespace pd2 {

struct SamplingParams {
    float       temperature       = 0;   // 0: the likeliest token is certain
    int32_t     top_k             = 0;   // 0: all
    float       top_p             = 1;   // 1: all
    float       min_p             = 0;   // 0: all
    float       typical_p         = 1;   // 1: all
    float       repeat_penalty    = 1;   // 1: none
    float       presence_penalty  = 0;   // 0: none
    float       frequency_penalty = 0;   // 0: none
    int32_t     penalty_last_n    = 64;  // tokens the penalties look back at, prompt included; -1: all
    std::string grammar;                 // GBNF with a rule named root; empty: none

    std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logit of a token
};

// A grammar's state along a draft: what may follow, without a word to the sampler it came from.
class Constraint {
  public:
    virtual ~Constraint() = default;

    virtual std::vector<bool> allowed(const int32_t * tokens, int32_t n) = 0;
    virtual void              accept(int32_t token)                      = 0;  // must be allowed
};

class Sampler {
  public:
    virtual ~Sampler() = default;

    // Of the next token, given its row of logits [n_vocab] and everything read and accepted before. In this order: logit
    // bias, penalties, grammar, top-k, typical-p, top-p, min-p, temperature. The row must outlive the distribution.
    virtual Distribution distribution(const float * logits) = 0;

    // The text so far: a prompt's token (penalties see it, the grammar does not), a generated one (both do).
    virtual void read(int32_t token)   = 0;
    virtual void accept(int32_t token) = 0;
    virtual void reset()               = 0;  // as if nothing had been read

    virtual std::unique_ptr<Constraint> constraint() const = 0;  // nullptr without a grammar

    // With the same state, to be told tokens that may not stand; nullptr where there is no state to keep apart.
    virtual std::unique_ptr<Sampler> fork() const = 0;
};

}  // namespace pd2
