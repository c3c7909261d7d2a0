#include "adjustments.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pd2 {

Adjustments::Adjustments(int32_t n_vocab, const SamplingParams & params, int32_t context_size)
    : bias_(params.logit_bias) {
    std::stable_sort(bias_.begin(), bias_.end(), [](const auto & a, const auto & b) { return a.first < b.first; });
    const int32_t asked  = params.penalty_last_n < 0 ? context_size : params.penalty_last_n;
    const int32_t last_n = std::min(asked, context_size);
    if (last_n != 0 && (params.repeat_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0)) {
        last_n_ = static_cast<size_t>(last_n);
        penalties_.reset(llama_sampler_init_penalties(n_vocab, last_n, params.repeat_penalty, params.frequency_penalty,
                                                      params.presence_penalty));
    }
}

Adjustments::Adjustments(const Adjustments & other)
    : bias_(other.bias_),
      penalties_(other.penalties_ ? llama_sampler_clone(other.penalties_.get()) : nullptr),
      last_n_(other.last_n_),
      recent_(other.recent_),
      counts_(other.counts_) {}

void Adjustments::read(int32_t token) {
    if (!penalties_) {
        return;
    }
    llama_sampler_accept(penalties_.get(), token);
    recent_.push_back(token);
    ++counts_[token];
    if (recent_.size() > last_n_) {
        const auto oldest = counts_.find(recent_.front());
        if (--oldest->second == 0) {
            counts_.erase(oldest);
        }
        recent_.pop_front();
    }
}

void Adjustments::reset() {
    if (penalties_) {
        llama_sampler_reset(penalties_.get());
    }
    recent_.clear();
    counts_.clear();
}

std::vector<Candidate> Adjustments::changes(const float * logits) const {
    std::vector<llama_token_data> changed;
    auto                          bias  = bias_.begin();
    auto                          count = counts_.begin();
    while (bias != bias_.end() || count != counts_.end()) {
        const int32_t token = bias == bias_.end()      ? count->first
                              : count == counts_.end() ? bias->first
                                                       : std::min(bias->first, count->first);
        float         logit = logits[token];
        for (; bias != bias_.end() && bias->first == token; ++bias) {
            logit += bias->second;
        }
        if (count != counts_.end() && count->first == token) {
            ++count;
        }
        changed.push_back({token, logit, 0});
    }
    if (penalties_) {
        llama_token_data_array array = {changed.data(), changed.size(), -1, false};
        llama_sampler_apply(penalties_.get(), &array);
    }
    std::vector<Candidate> changes;
    for (const llama_token_data & one : changed) {  // extreme settings overflow
        const float logit = std::min(one.logit, std::numeric_limits<float>::max());
        changes.push_back({one.id, std::isnan(logit) ? Row::kForbidden : logit});
    }
    return changes;
}

}  // namespace pd2
