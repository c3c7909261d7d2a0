#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "adjustments.h"
#include "error.h"
#include "grammar.h"
#include "llama-cpp.h"
#include "llama_sampler.h"

namespace pd2 {

namespace {

// llama.cpp's typical-p multiplies p by log(p), in floats: a p that underflows to 0 would make everything NaN.
constexpr float kUnderflow = 80;

// Share of the probability that may go unasked: far below a float's rounding.
constexpr double kNothing = 1e-12;

constexpr float kEverything = std::numeric_limits<float>::infinity();

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

double weight(float logit, float top, float temperature) {
    return std::exp((static_cast<double>(logit) - static_cast<double>(top)) / static_cast<double>(temperature));
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
            result.push_back(candidate.logit != Row::kForbidden);
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
        : n_vocab_(llama_vocab_n_tokens(vocab)),
          params_(checked(params, n_vocab_)),
          adjustments_(n_vocab_, params, context_size) {
        params_.grammar.clear();  // a fork need not copy what is never read again
        params_.logit_bias.clear();
        if (!params.grammar.empty()) {
            check_grammar(params.grammar, vocab);
            grammar_.reset(llama_sampler_init_grammar(vocab, params.grammar.c_str(), "root"));
            if (!grammar_) {
                fail(PD2_ERROR_ARGUMENT, "the grammar cannot be read: write it in GBNF, with a rule named root");
            }
        }
        if (params.temperature == 0) {
            return;
        }
        const auto add = [&](bool wanted, llama_sampler * (*make)(float, size_t), float value) {
            if (wanted) {
                truncations_.emplace_back(make(value, 1));
            }
        };
        add(params.typical_p < 1, llama_sampler_init_typical, params.typical_p);
        nucleus_first_ = params.top_p < 1 && params.top_k == 0 && truncations_.empty() && !grammar_;
        add(params.top_p < 1 && !nucleus_first_, llama_sampler_init_top_p, params.top_p);
        add(params.min_p > 0, llama_sampler_init_min_p, params.min_p);
    }

    Distribution distribution(const float * logits) override {
        Row row(logits, n_vocab_, adjustments_.changes(logits));
        if (!row.finite()) {
            fail(PD2_ERROR_NATIVE,
                 "the target's logits are not finite numbers; its file is damaged or its cache type too "
                 "narrow: fetch or convert it again, or load with kv_type f32");
        }
        if (row.top() == Row::kForbidden) {
            nothing_left();
        }
        if (params_.temperature > 0 && params_.top_k == 0 && !grammar_ && truncations_.empty() && !nucleus_first_) {
            return Distribution(std::move(row), params_.temperature);
        }
        std::vector<Candidate> candidates = select(row);
        if (candidates.empty()) {
            nothing_left();
        }
        truncate(candidates);
        return Distribution(candidates, params_.temperature > 0 ? params_.temperature : 1);
    }

    void read(int32_t token) override { adjustments_.read(token); }

    void accept(int32_t token) override {
        read(token);
        if (grammar_) {
            llama_sampler_accept(grammar_.get(), token);
        }
    }

    void reset() override {
        adjustments_.reset();
        if (grammar_) {
            llama_sampler_reset(grammar_.get());
        }
    }

    std::unique_ptr<Sampler> fork() const override {
        const bool has_state = grammar_ || adjustments_.has_penalties();
        return has_state ? std::unique_ptr<Sampler>(new LlamaSampler(*this)) : nullptr;
    }

    std::unique_ptr<Constraint> constraint() const override {
        return grammar_ ? std::make_unique<GrammarConstraint>(grammar_.get()) : nullptr;
    }

  private:
    LlamaSampler(const LlamaSampler & other)
        : n_vocab_(other.n_vocab_),
          params_(other.params_),
          adjustments_(other.adjustments_),
          grammar_(copy(other.grammar_)),
          nucleus_first_(other.nucleus_first_) {
        for (const llama_sampler_ptr & truncation : other.truncations_) {
            truncations_.push_back(copy(truncation));
        }
    }

    static llama_sampler_ptr copy(const llama_sampler_ptr & sampler) {
        return llama_sampler_ptr(sampler ? llama_sampler_clone(sampler.get()) : nullptr);
    }

    static const SamplingParams & checked(const SamplingParams & params, int32_t n_vocab) {
        check(params, n_vocab);
        return params;
    }

    // The tokens that truncate() may keep and that it looks at to decide: as few as can be told without sorting the row. Top-k
    // is done then, and so is a top-p with nothing before it.
    std::vector<Candidate> select(const Row & row) const {
        if (grammar_) {
            return allowed(row);
        }
        if (params_.temperature == 0) {
            return {{row.first_of_largest(), 0}};
        }
        if (nucleus_first_) {
            return nucleus(row);
        }
        float limit = Row::kLowest;
        if (params_.top_k > 0) {
            limit = std::max(limit, row.reached_by(static_cast<size_t>(params_.top_k)));
        }
        if (params_.typical_p < 1) {
            limit = std::max(limit, row.top() - kUnderflow);
        } else if (params_.top_p >= 1 && params_.min_p > 0) {
            limit = std::max(limit, row.top() + std::log(params_.min_p));
        }
        std::vector<Candidate> candidates;
        row.select(limit, kEverything, candidates);
        if (params_.top_k > 0) {
            keep_likeliest(candidates, static_cast<size_t>(params_.top_k));
        }
        return candidates;
    }

    // The likeliest tokens that together have top_p of the probability.
    std::vector<Candidate> nucleus(const Row & row) const {
        const std::vector<double> masses = row.masses(1);
        const double              goal   = std::accumulate(masses.begin(), masses.end(), 0.0) * params_.top_p;
        std::vector<Candidate>    kept, group;
        double                    mass = 0;
        for (Descent descent(row); descent.next(group);) {
            for (const Candidate & candidate : group) {
                kept.push_back(candidate);
                mass += weight(candidate.logit, row.top(), 1);
                if (mass >= goal) {
                    return kept;
                }
            }
        }
        return kept;
    }

    // The likeliest tokens that the grammar allows. A verdict costs up to half a microsecond and depends on its token alone,
    // so no more are asked about than the rest of the chain will look at: the likeliest top_k, those that reach min-p, or
    // all but those that together weigh nothing.
    std::vector<Candidate> allowed(const Row & row) const {
        const size_t enough = params_.temperature == 0 ? 1
                              : params_.top_k > 0      ? static_cast<size_t>(params_.top_k)
                                                       : SIZE_MAX;
        const float  heat   = std::max(params_.temperature, 1.0f);  // the truncating samplers work at temperature 1
        const float  reach  = params_.typical_p < 1 || params_.top_p < 1 ? Row::kForbidden : std::log(params_.min_p);
        std::vector<Candidate>        kept, group;
        std::vector<llama_token_data> asked;
        double                        mass = 0;
        for (Descent descent(row); kept.size() < enough && descent.next(group);) {
            if (group.empty()) {
                continue;
            }
            asked.clear();
            for (const Candidate & candidate : group) {
                asked.push_back({candidate.token, candidate.logit, 0});
            }
            llama_token_data_array array = {asked.data(), asked.size(), -1, false};
            llama_sampler_apply(grammar_.get(), &array);
            for (const llama_token_data & one : asked) {
                if (one.logit != Row::kForbidden) {
                    kept.push_back({one.id, one.logit});
                    mass += weight(one.logit, row.top(), heat);
                }
            }
            const bool all_reach = !kept.empty() && descent.floor() <= kept.front().logit + reach;
            if (all_reach || row.rest(descent.floor(), heat) < kNothing * mass) {
                break;
            }
        }
        kept.resize(std::min(kept.size(), enough));
        if (params_.typical_p < 1 && !kept.empty()) {
            const float limit = kept.front().logit - kUnderflow;
            kept.erase(std::find_if(kept.begin(), kept.end(), [&](const Candidate & c) { return !(c.logit > limit); }),
                       kept.end());
        }
        return kept;
    }

    void truncate(std::vector<Candidate> & candidates) const {
        if (truncations_.empty()) {
            return;
        }
        std::vector<llama_token_data> data;
        data.reserve(candidates.size());
        for (const Candidate & candidate : candidates) {
            data.push_back({candidate.token, candidate.logit, 0});
        }
        const bool             sorted = params_.top_k > 0 || nucleus_first_ || grammar_;
        llama_token_data_array array  = {data.data(), data.size(), -1, sorted};
        for (const llama_sampler_ptr & truncation : truncations_) {
            llama_sampler_apply(truncation.get(), &array);
        }
        candidates.clear();
        for (size_t i = 0; i < array.size; ++i) {
            candidates.push_back({array.data[i].id, array.data[i].logit});
        }
    }

    [[noreturn]] void nothing_left() const {
        fail(PD2_ERROR_ARGUMENT, "%s left no token to continue with: allow one that can end the text, or another",
             !grammar_                  ? "logit_bias"
             : !adjustments_.has_bias() ? "the grammar"
                                        : "the grammar and logit_bias");
    }

    const int32_t                  n_vocab_;
    SamplingParams                 params_;
    Adjustments                    adjustments_;
    llama_sampler_ptr              grammar_;
    bool                           nucleus_first_ = false;  // top-p comes first, over the whole row: ours
    std::vector<llama_sampler_ptr> truncations_;            // the others, in the order they are applied
};

}  // namespace

std::unique_ptr<Sampler> make_sampler(const llama_vocab * vocab, const SamplingParams & params, int32_t context_size) {
    return std::make_unique<LlamaSampler>(vocab, params, context_size);
}

}  // namespace pd2
