// What to draft, and how much of it to verify, so that the text grows fastest.
//
// A round takes T seconds and commits E tokens on average; with the best rate that can be had, lambda = max E / T over
// the choices, a choice is worth E - lambda T, and the best one is worth 0. lambda is found by Dinkelbach's iteration.
// A plain step is the choice E = 1, T = verify(1), so lambda is never below the plain rate. Texts stay what they are
// for a while, so it is the rate of this round's kind of text that counts, not one over all rounds.
//
// No clock in here: times are told. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "costs.h"
#include "lookup.h"
#include "success.h"

namespace pd2 {

enum class Kind { none, head, map_k4v, mod };

struct Choice {
    Kind    kind  = Kind::none;
    int32_t width = 0;      // head: tokens to draft, cut() or more() says how many to verify; lookup: tokens to verify
    bool    probe = false;  // made to learn from, not because it pays
};

// What became of a choice.
struct Round {
    Kind                 kind       = Kind::none;
    int32_t              n_drafted  = 0;  // head: the width it was run with
    int32_t              n_verified = 0;  // drafted tokens verified; 0: a plain step
    int32_t              n_accepted = 0;
    bool                 ended      = false;  // an end token or a limit ended the round: what follows was not rejected
    std::vector<float>   confidences;         // head: of the tokens on its path, verified or not
    std::vector<int32_t> committed;           // what the text grew by
    double               draft_seconds  = 0;
    double               verify_seconds = 0;
};

class Policy {
  public:
    struct Limits {
        int32_t                             head_width = 0;   // most that the head drafts; 0: no head
        int32_t                             most       = 63;  // most drafted tokens that the target verifies
        std::optional<std::vector<int32_t>> allowed;          // the only widths that may be verified, beside 0
    };

    enum class Lookups { any, off, map_k4v, mod };

    // Of a text. A head width alone is the static arm: the head at that width, no lookup. A lookup drafter alone comes
    // first with all it finds; where it finds nothing, the head drafts.
    struct Mode {
        static constexpr int32_t any = -1;

        bool    speculate  = true;
        int32_t head_width = any;  // 0: no head
        Lookups lookups    = Lookups::any;
        bool    head       = true;  // it can draft for this text
    };

    explicit Policy(const Limits & limits);

    // A calibration. Nothing else of costs enters reproducible texts.
    void set_verify(int32_t rows, double seconds);
    void set_draft(int32_t width, double seconds);

    // Calibrated, and refined since.
    const Costs & costs() const { return costs_; }

    // A new text. reproducible: choices depend on the calibration and on this text's own rounds alone, not on their
    // times, nor on texts before it; later ones find what was learned before.
    void begin(const Mode & mode, bool reproducible);

    // The next round's. Lookups: what was found, or nullptr. room: tokens that may be drafted, by context, limits and
    // what the target can take back.
    Choice choose(const Lookup * map_k4v, const Lookup * mod, int32_t room);

    // How many tokens of a likeliest path, known as a whole, to verify; 0: none.
    int32_t cut(const std::vector<float> & confidences) const;

    // Whether to draw one more token of a path. It is asked before the token is drawn, and knows of it only what is
    // known before: a draft that were cut because of what it drew would change the text's distribution.
    bool more(const std::vector<float> & drawn, float next) const;

    void learn(const Round & round);

  private:
    struct Learned {
        explicit Learned(int32_t head_width) : head(head_width) {}

        HeadSuccess                  head;
        std::array<LookupSuccess, 2> lookups;  // map-k4v, mod
        double                       purse;    // the head's gains against plain steps, in tokens
    };

    struct Option {
        Choice choice;
        double tokens, seconds;

        double value(double rate) const { return tokens - rate * seconds; }
    };

    bool          chooses() const { return mode_.speculate && mode_.head_width == Mode::any; }
    const Costs & used_costs() const { return reproducible_ ? calibrated_ : costs_; }
    Choice        forced(Lookups lookups, int32_t room) const;
    Choice        best(int32_t room);
    void          add_lookups(int32_t room);
    Option        best_of_head(double rate, int32_t room) const;
    int32_t       fit(int32_t width) const;
    int32_t       best_cut(const std::vector<double> & tokens, int32_t from, int32_t to) const;

    const Limits         limits_;
    std::vector<int32_t> widths_;  // that are verified, ascending
    Costs                costs_, calibrated_;
    Learned              own_, fresh_;
    bool                 reproducible_ = false;
    Learned *            learned_;
    Mode                 mode_;

    std::array<Lookup, 2> found_;  // this round
    std::vector<Option>   options_;
    Choice                choice_;
    double                rate_           = 0;  // lambda
    int32_t               rounds_unplain_ = 0;
};

}  // namespace pd2
