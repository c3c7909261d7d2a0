// One text with its caches: prefill, then rounds of draft and verify. The anchor is the last committed token; it has
// been chosen but the target has not read it, so n tokens are committed while n - 1 positions are cached.
#pragma once

#include <memory>
#include <vector>

#include "acceptance.h"
#include "drafter/drafter.h"
#include "logprobs.h"
#include "random.h"
#include "target/target.h"
#include "walk.h"

namespace pd2 {

// Throws PD2_ERROR_ARGUMENT for an empty prompt, or one with a token that does not exist.
void check_prompt(const int32_t * tokens, int32_t n_tokens, int32_t n_vocab);

class Sequence {
  public:
    // drafter: nullptr without a head. Both must outlive the sequence.
    Sequence(Target & target, Drafter * drafter);

    struct Settings {
        SamplingParams sampling;
        uint64_t       seed       = 0;
        int32_t        n_logprobs = -1;  // likeliest tokens to report beside each committed one's own; -1: no report
    };

    // What begin needs of the settings; throws PD2_ERROR_ARGUMENT for what it would refuse.
    static std::unique_ptr<Sampler> sampler(const Target & target, const Settings & settings);

    // Returns the number of tokens that need no prefill.
    int32_t begin(const int32_t * tokens, int32_t n_tokens, bool drafting, const Settings & settings);

    // Returns the number of prompt tokens left; at 0 the anchor has been chosen.
    int32_t prefill(int32_t max_tokens);

    struct Draft {
        Lattice lattice;
        Path    path;  // as long as the lattice, or cut

        // Its first n tokens for verify(), which point here.
        std::vector<Proposal> proposals(int32_t n) const;
    };

    Draft & draft(int32_t width, const WalkParams & params);

    struct Verdict {
        std::vector<int32_t> tokens;  // committed by this round
        int32_t              n_accepted = 0;
        bool                 has_bonus  = false;
        bool                 finished   = false;
    };

    const Verdict & verify(const std::vector<Proposal> & draft, int32_t max_commit);

    // Of the tokens that the last prefill or verify committed.
    const Logprobs & logprobs() const { return logprobs_; }

    const std::vector<int32_t> & tokens() const { return tokens_; }

    // Back to a sequence without text.
    void forget();

    // [n_tokens, n_taps * n_embd] of a whole text, until the next call. The sequence is empty then.
    const std::vector<float> & read_features(const int32_t * tokens, int32_t n_tokens);

    // Why draft() would refuse now, or nullptr.
    const char * draft_obstacle() const;

    // Drafted tokens at most: by the head, in one verification, and in one now.
    int32_t most_drafted() const;
    int32_t most_verified() const;
    int32_t room() const;

    // Of the text as it stands; nullptr without a grammar.
    std::unique_ptr<Constraint> constraint() const { return sampler_ ? sampler_->constraint() : nullptr; }

    // Another one for each text that was begun; 0: none yet.
    uint64_t text_id() const { return text_id_; }

  private:
    void check_draft(const std::vector<Proposal> & draft) const;
    void judge(const std::vector<Proposal> & draft, int32_t max_commit, Verdict & verdict);
    void accept(int32_t row, int32_t token);
    bool rewind(int32_t position);
    void restore(int32_t position);

    Target &             target_;
    Drafter *            drafter_;
    const int32_t        context_size_;
    const int32_t        n_vocab_;
    const int32_t        rollback_limit_;
    std::vector<int32_t> tokens_;  // committed; while a prefill runs, the prompt
    int32_t              n_prompt_ = 0;
    bool                 ready_    = false;  // the anchor has been chosen
    bool                 drafting_ = false;
    uint64_t             text_id_  = 0;

    std::unique_ptr<Sampler> sampler_;
    Random                   random_{0};
    bool                     with_logprobs_ = false;
    Logprobs                 logprobs_;
    Draft                    draft_;
    Verdict                  verdict_;
    std::vector<float>       features_;
};

}  // namespace pd2
