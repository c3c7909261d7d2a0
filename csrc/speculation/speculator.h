// Rounds that choose their own draft: the head's, one looked up in the text, or none, by what is expected to be fastest.
#pragma once

#include <memory>
#include <vector>

#include "lookup.h"
#include "policy.h"
#include "sequence.h"

namespace pd2 {

class Speculator {
  public:
    // The sequence must outlive it.
    explicit Speculator(Sequence & sequence);

    // The only widths that may be verified beside 0, or any again. What was learned is forgotten.
    void allow(std::optional<std::vector<int32_t>> widths);

    struct Settings {
        Policy::Mode mode;
        bool         reproducible = false;  // no measured time may change a width
        WalkParams   walk;                  // its `more` is set here
    };

    struct Outcome {
        Kind              kind       = Kind::none;
        int32_t           n_verified = 0;  // drafted tokens
        Sequence::Verdict verdict;
        double            draft_seconds  = 0;  // choosing and looking up included
        double            verify_seconds = 0;
    };

    // One round on the sequence's text. max_commit: tokens committed at most, -1 for no limit.
    const Outcome & round(const Settings & settings, int32_t max_commit);

    Policy & policy() { return *policy_; }

  private:
    void                  begin(const Settings & settings);
    std::vector<Proposal> draft(const Settings & settings, const Lookup * map_k4v, const Lookup * mod, int32_t room,
                                Round & round);
    std::vector<Proposal> take(const Lookup & found, int32_t width) const;
    std::vector<Proposal> draft_head(const WalkParams & walk, int32_t width, Round & round);

    Sequence &                     sequence_;
    std::unique_ptr<Policy>        policy_;
    std::unique_ptr<LookupDrafter> map_k4v_ = make_map_k4v();
    std::unique_ptr<LookupDrafter> mod_     = make_mod();
    uint64_t                       text_    = 0;  // that was begun here, by Sequence::text_id
    Settings                       settings_;
    Outcome                        outcome_;
};

}  // namespace pd2
