// One text with its caches: prefill, then rounds of draft and verify. The anchor is the last committed token; it has
// been chosen but the target has not read it, so n tokens are committed while n - 1 positions are cached.
#pragma once

#include <string>
#include <vector>

#include "drafter/drafter.h"
#include "target/target.h"
#include "walk.h"

namespace pd2 {

class Sequence {
  public:
    // drafter: nullptr without a head. Both must outlive the sequence.
    Sequence(Target & target, Drafter * drafter);

    // Returns the number of tokens that need no prefill.
    int32_t begin(const int32_t * tokens, int32_t n_tokens, bool drafting);

    // Returns the number of prompt tokens left; at 0 the anchor has been chosen.
    int32_t prefill(int32_t max_tokens);

    struct Draft {
        Lattice lattice;
        Path    path;
    };

    Draft & draft(int32_t width);

    struct Verdict {
        std::vector<int32_t> tokens;  // committed by this round
        int32_t              n_accepted = 0;
        bool                 has_bonus  = false;
        bool                 finished   = false;
    };

    const Verdict & verify(const int32_t * draft, int32_t n_draft, int32_t max_commit);

    const std::vector<int32_t> & tokens() const { return tokens_; }

    // Why draft() would refuse now, or nullptr.
    const char * draft_obstacle() const;

  private:
    int32_t choose(int32_t row) const;
    bool    rewind(int32_t position);
    void    restore(int32_t position);
    void    forget();

    Target &             target_;
    Drafter *            drafter_;
    const int32_t        context_size_;
    const int32_t        n_vocab_;
    const int32_t        rollback_limit_;
    std::vector<int32_t> tokens_;            // committed; while a prefill runs, the prompt
    bool                 ready_    = false;  // the anchor has been chosen
    bool                 drafting_ = false;
    Draft                draft_;
    Verdict              verdict_;
};

}  // namespace pd2
