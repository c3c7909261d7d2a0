// What logit bias and penalties make of a row: they change some tokens' logits, and only those are looked at.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "llama-cpp.h"
#include "sampler.h"

namespace pd2 {

class Adjustments {
  public:
    Adjustments(int32_t n_vocab, const SamplingParams & params, int32_t context_size);
    Adjustments(const Adjustments & other);

    bool has_bias() const { return !bias_.empty(); }
    bool has_penalties() const { return penalties_ != nullptr; }

    void read(int32_t token);
    void reset();

    // The tokens whose logits change, in the vocabulary's order, and what they become.
    std::vector<Candidate> changes(const float * logits) const;

  private:
    std::vector<std::pair<int32_t, float>> bias_;  // in the vocabulary's order
    llama_sampler_ptr                      penalties_;
    size_t                                 last_n_ = 0;
    std::deque<int32_t>                    recent_;  // the last_n_ tokens that penalties_ remembers,
    std::map<int32_t, int32_t>             counts_;  // and how often each of them is there
};

}  // namespace pd2
