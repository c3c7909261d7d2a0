// How often what a drafter proposes stands, as measured, so that a draft's worth can be told before it is verified.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lookup.h"

namespace pd2 {

// Accepted of tried, the latest weighing most.
struct Rate {
    double accepted = 0, tried = 0;

    void   count(bool stood, double window);  // window: observations that are remembered
    void   fade(double keep);                 // towards the prior
    double value(double prior, double weight) const { return (accepted + weight * prior) / (tried + weight); }
};

// The head's. A token's confidence is the largest q of the selector's softmax at its position.
class HeadSuccess {
  public:
    explicit HeadSuccess(int32_t max_width);

    // With which a token stands whose predecessors stood: one of known confidence; at a position, 0 being the first
    // drafted, before anything is known about it.
    double by_confidence(float confidence) const;
    double by_position(int32_t position) const { return positions_[static_cast<size_t>(position)]; }

    // n_accepted of n_verified of a draft stood. ended: the text, not a rejection, ended the round after them.
    void learn(const std::vector<float> & confidences, int32_t n_verified, int32_t n_accepted, bool ended);

    // Expected tokens of a round, 1 + S_1 + .. + S_v for v = 0 .. max_width verified, S_j = the product of the first j
    // chances. Chances beyond the confidences are by position.
    void expected(const std::vector<float> & confidences, std::vector<double> & tokens) const;

    // Of the latest drafts, and one of averages: what the next draft may be like.
    struct Curve {
        double              weight = 0;
        std::vector<double> tokens;  // [max_width + 1]
    };
    const std::vector<Curve> & curves() const { return curves_; }
    void                       update_curves();

    void fade();  // another text

  private:
    static constexpr size_t n_bins = 11;

    struct Drafted {
        std::vector<float> confidences;
        double             weight = 1;
    };

    void update_positions();

    std::array<Rate, n_bins> bins_{};
    std::vector<Rate>        tried_;      // by position
    std::vector<double>      positions_;  // by position: tried_ with its prior
    std::vector<Drafted>     drafts_;     // oldest first
    std::vector<Curve>       curves_;
};

// A lookup drafter's, by the length of its match. Its drafts need not be used to be judged: what the text did instead
// says whether they would have stood.
class LookupSuccess {
  public:
    double first(int32_t match_length) const;  // with which a draft's first token stands,
    double later(int32_t match_length) const;  // and one whose predecessors did

    // Against what was committed in its place.
    void learn(const Lookup & lookup, const std::vector<int32_t> & committed);

    void fade();

  private:
    static constexpr size_t n_bins = 4;

    std::array<Rate, n_bins> first_{}, later_{};
};

}  // namespace pd2
