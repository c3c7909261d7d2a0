#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "error.h"
#include "grammar.h"
#include "llama-cpp.h"
#include "llama_sampler.h"

namespace pd2 {

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Probabilities below exp(-kNegligible) of the largest are left out: a whole vocabulary of them weighs less than the
// rounding of one float, and most of a vocabulary is of that kind.
constexpr double kNegligible = 40;

// llama.cpp's typical-p multiplies p by log(p), in floats: a p that underflows to 0 would make everything NaN.
constexpr float kUnderflow = 80;

// The grammar is asked about this many tokens first, then about four times as many, ...
constexpr size_t kFirstAsked = 16;

// Share of the probability that may go unasked: far below a float's rounding.
constexpr double kNothing = 1e-12;

void check(const SamplingParams & params, int32_t n_vocab) {
    const auto refuse = [](const char * name, double value, const char * range) {
        fail(PD2_ERROR_ARGUMENT, "%s is %g: give %s", name, value, range);
    };
    const auto positive_share = [&](const char * name, float value) {
        if (!(value > 0 && value <= 1)) {
            refuse(name, value, "a number above 0 and up to 1, which keeps every token");
        }
    };
    const auto finite = [&](const char * name, float value) {
        if (!std::isfinite(value)) {
            refuse(name, value, "a finite number, 0 for none");
        }
    };
    if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
        refuse("temperature", params.temperature, "0 for the likeliest token, or a positive number");
    }
    if (params.top_k < 0) {
        refuse("top_k", params.top_k, "a number of tokens, 0 for all");
    }
    if (!(params.min_p >= 0 && params.min_p <= 1)) {
        refuse("min_p", params.min_p, "a share of the likeliest token's probability, 0 to 1");
    }
    if (!(params.repeat_penalty > 0 && std::isfinite(params.repeat_penalty))) {
        refuse("repeat_penalty", params.repeat_penalty, "a positive number, 1 for none");
    }
    if (params.penalty_last_n < -1) {
        refuse("penalty_last_n", params.penalty_last_n, "a number of tokens, -1 for all");
    }
    positive_share("top_p", params.top_p);
    positive_share("typical_p", params.typical_p);
    finite("presence_penalty", params.presence_penalty);
    finite("frequency_penalty", params.frequency_penalty);
    for (const auto & [token, bias] : params.logit_bias) {
        if (token < 0 || token >= n_vocab) {
            fail(PD2_ERROR_ARGUMENT, "logit_bias names token %d, the target's ids are 0..%d", token, n_vocab - 1);
        }
        if (!(bias < std::numeric_limits<float>::infinity())) {  // NaN too
            fail(PD2_ERROR_ARGUMENT,
                 "logit_bias of token %d is %g: give a finite number, or minus infinity to forbid it", token,
                 static_cast<double>(bias));
        }
    }
}

bool has_penalties(const SamplingParams & params) {
    return params.penalty_last_n != 0 &&
           (params.repeat_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0);
}

void drop(std::vector<llama_token_data> & candidates, float limit) {
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                    [=](const llama_token_data & c) { return !(c.logit > limit); }),
                     candidates.end());
}

class GrammarConstraint : public Constraint {
  public:
    explicit GrammarConstraint(const llama_sampler * grammar) : grammar_(llama_sampler_clone(grammar)) {}

    std::vector<bool> allowed(const int32_t * tokens, int32_t n) override {
        std::vector<llama_token_data> data;
        for (int32_t i = 0; i < n; ++i) {
            data.push_back({tokens[i], 0, 0});
        }
        llama_token_data_array array = {data.data(), data.size(), -1, false};
        llama_sampler_apply(grammar_.get(), &array);
        std::vector<bool> result;
        for (const llama_token_data & candidate : data) {
            result.push_back(candidate.logit != kForbidden);
        }
        return result;
    }

    void accept(int32_t token) override { llama_sampler_accept(grammar_.get(), token); }

  private:
    llama_sampler_ptr grammar_;
};

class LlamaSampler : public Sampler {
  public:
    LlamaSampler(const llama_vocab * vocab, const SamplingParams & params, int32_t context_size)
        : n_vocab_(llama_vocab_n_tokens(vocab)), temperature_(params.temperature), bias_(params.logit_bias) {
        check(params, n_vocab_);
        if (has_penalties(params)) {
            const int32_t last_n = params.penalty_last_n < 0 ? context_size : params.penalty_last_n;
            penalties_.reset(llama_sampler_init_penalties(n_vocab_, std::min(last_n, context_size),
                                                          params.repeat_penalty, params.frequency_penalty,
                                                          params.presence_penalty));
        }
        if (!params.grammar.empty()) {
            check_grammar(params.grammar, vocab);
            grammar_.reset(llama_sampler_init_grammar(vocab, params.grammar.c_str(), "root"));
            if (!grammar_) {
                fail(PD2_ERROR_ARGUMENT, "the grammar cannot be read: write it in GBNF, with a rule named root");
            }
        }
        if (temperature_ == 0) {
            enough_ = 1;
        } else {
            const auto add = [&](bool wanted, llama_sampler * (*make)(float, size_t), float value) {
                if (wanted) {
                    truncations_.emplace_back(make(value, 1));
                }
            };
            if (params.top_k > 0) {
                truncations_.emplace_back(llama_sampler_init_top_k(params.top_k));
                enough_ = static_cast<size_t>(params.top_k);
            }
            typical_ = params.typical_p < 1;
            add(typical_, llama_sampler_init_typical, params.typical_p);
            add(params.top_p < 1, llama_sampler_init_top_p, params.top_p);
            add(params.min_p > 0, llama_sampler_init_min_p, params.min_p);
        }
    }

    const Distribution & distribution(const float * logits) override {
        if (temperature_ == 0 && bias_.empty() && !penalties_ && !grammar_) {
            return certain(largest(logits));
        }
        fill(logits);
        if (temperature_ == 0) {
            return certain(likeliest_allowed());
        }
        drop(candidates_, kForbidden);
        if (grammar_) {
            keep_allowed();
        }
        if (candidates_.empty()) {
            nothing_left();
        }
        if (typical_) {
            drop(candidates_, top_logit() - kUnderflow);
        }
        for (const llama_sampler_ptr & truncation : truncations_) {
            apply(*truncation);
        }
        return softmax();
    }

    void read(int32_t token) override {
        if (penalties_) {
            llama_sampler_accept(penalties_.get(), token);
        }
    }

    void accept(int32_t token) override {
        read(token);
        if (grammar_) {
            llama_sampler_accept(grammar_.get(), token);
        }
    }

    void reset() override {
        for (const llama_sampler_ptr * sampler : {&penalties_, &grammar_}) {
            if (*sampler) {
                llama_sampler_reset(sampler->get());
            }
        }
    }

    std::unique_ptr<Sampler> fork() const override {
        return penalties_ || grammar_ ? std::unique_ptr<Sampler>(new LlamaSampler(*this)) : nullptr;
    }

    std::unique_ptr<Constraint> constraint() const override {
        return grammar_ ? std::make_unique<GrammarConstraint>(grammar_.get()) : nullptr;
    }

  private:
    LlamaSampler(const LlamaSampler & other)
        : n_vocab_(other.n_vocab_),
          temperature_(other.temperature_),
          bias_(other.bias_),
          penalties_(copy(other.penalties_)),
          grammar_(copy(other.grammar_)),
          typical_(other.typical_),
          enough_(other.enough_) {
        for (const llama_sampler_ptr & truncation : other.truncations_) {
            truncations_.push_back(copy(truncation));
        }
    }

    static llama_sampler_ptr copy(const llama_sampler_ptr & sampler) {
        return llama_sampler_ptr(sampler ? llama_sampler_clone(sampler.get()) : nullptr);
    }

    // Candidates with their logits after bias and penalties, in the vocabulary's order.
    void fill(const float * logits) {
        largest(logits);  // are they numbers?
        candidates_.resize(static_cast<size_t>(n_vocab_));
        for (int32_t token = 0; token < n_vocab_; ++token) {
            candidates_[static_cast<size_t>(token)] = {token, logits[token], 0};
        }
        for (const auto & [token, bias] : bias_) {
            candidates_[static_cast<size_t>(token)].logit += bias;
        }
        if (penalties_) {
            apply(*penalties_);
        }
        for (llama_token_data & candidate : candidates_) {  // extreme settings overflow
            candidate.logit = std::min(candidate.logit, std::numeric_limits<float>::max());
        }
    }

    void apply(llama_sampler & sampler) {
        llama_token_data_array array = {candidates_.data(), candidates_.size(), -1, false};
        llama_sampler_apply(&sampler, &array);
        if (array.data != candidates_.data()) {  // a sampler may answer with a buffer of its own
            std::copy(array.data, array.data + array.size, candidates_.begin());
        }
        candidates_.resize(array.size);
    }

    // The first of the largest logits.
    int32_t largest(const float * logits) const {
        const float * best = std::max_element(logits, logits + n_vocab_);
        if (!std::isfinite(*best)) {
            fail(PD2_ERROR_NATIVE,
                 "the target's logits are not finite numbers; its file is damaged or its cache type too "
                 "narrow: fetch or convert it again, or load with kv_type f32");
        }
        return static_cast<int32_t>(best - logits);
    }

    // Takes away what the grammar forbids. A verdict costs up to half a microsecond and depends on its token alone, so the
    // likeliest are asked about first, and no more of them than the rest of the chain will look at: the likeliest top_k,
    // or all but those that together weigh nothing.
    void keep_allowed() {
        const auto  likelier = [](const llama_token_data & a, const llama_token_data & b) { return a.logit > b.logit; };
        const auto  begin    = candidates_.begin();
        const float heat     = std::max(temperature_, 1.0f);  // the truncating samplers work at temperature 1
        const float top      = top_logit();
        const auto  weight   = [&](const llama_token_data & c) { return std::exp((c.logit - top) / heat); };
        size_t      kept = 0, asked = 0;
        double      kept_weight = 0;
        for (size_t chunk = kFirstAsked; asked < candidates_.size() && kept < enough_; chunk *= 4) {
            const size_t n = std::min(chunk, candidates_.size() - asked);
            std::partial_sort(begin + asked, begin + asked + n, candidates_.end(), likelier);
            llama_token_data_array array = {candidates_.data() + asked, n, -1, false};
            llama_sampler_apply(grammar_.get(), &array);
            for (const size_t end = asked + n; asked < end; ++asked) {
                if (candidates_[asked].logit != kForbidden) {
                    kept_weight += weight(candidates_[asked]);
                    candidates_[kept++] = candidates_[asked];
                }
            }
            double rest = 0;
            for (size_t i = asked; i < candidates_.size(); ++i) {
                rest += weight(candidates_[i]);
            }
            if (rest < kNothing * kept_weight) {
                break;
            }
        }
        candidates_.resize(std::min(kept, enough_));
    }

    int32_t likeliest_allowed() {
        drop(candidates_, kForbidden);
        if (grammar_) {
            keep_allowed();  // enough_ is 1
        }
        const auto less   = [](const llama_token_data & a, const llama_token_data & b) { return a.logit < b.logit; };
        const auto chosen = std::max_element(candidates_.begin(), candidates_.end(), less);
        if (chosen == candidates_.end()) {
            nothing_left();
        }
        return chosen->id;
    }

    [[noreturn]] void nothing_left() const {
        fail(PD2_ERROR_ARGUMENT, "%s left no token to continue with: allow one that can end the text, or another",
             !grammar_       ? "logit_bias"
             : bias_.empty() ? "the grammar"
                             : "the grammar and logit_bias");
    }

    float top_logit() const {
        float top = kForbidden;
        for (const llama_token_data & candidate : candidates_) {
            top = std::max(top, candidate.logit);
        }
        return top;
    }

    const Distribution & certain(int32_t token) {
        distribution_.tokens.assign(1, token);
        distribution_.probabilities.assign(1, 1.0);
        return distribution_;
    }

    const Distribution & softmax() {
        const double top   = top_logit();
        const double floor = top - kNegligible * temperature_;
        double       total = 0;
        distribution_.tokens.clear();
        distribution_.probabilities.clear();
        for (const llama_token_data & candidate : candidates_) {
            if (candidate.logit >= floor) {
                const double weight = std::exp((candidate.logit - top) / temperature_);
                distribution_.tokens.push_back(candidate.id);
                distribution_.probabilities.push_back(weight);
                total += weight;
            }
        }
        for (double & probability : distribution_.probabilities) {
            probability /= total;
        }
        return distribution_;
    }

    const int32_t                          n_vocab_;
    const float                            temperature_;
    std::vector<std::pair<int32_t, float>> bias_;
    llama_sampler_ptr                      penalties_;
    llama_sampler_ptr                      grammar_;
    std::vector<llama_sampler_ptr>         truncations_;  // in the order they are applied
    bool                                   typical_ = false;
    size_t                        enough_ = SIZE_MAX;  // candidates that the samplers after the grammar look at
    std::vector<llama_token_data> candidates_;
    Distribution                  distribution_;
};

}  // namespace

double Distribution::of(int32_t token) const {
    const auto found = std::find(tokens.begin(), tokens.end(), token);
    return found == tokens.end() ? 0 : probabilities[static_cast<size_t>(found - tokens.begin())];
}

std::unique_ptr<Sampler> make_sampler(const llama_vocab * vocab, const SamplingParams & params, int32_t context_size) {
    return std::make_unique<LlamaSampler>(vocab, params, context_size);
}

}  // namespace pd2
