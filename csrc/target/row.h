// A row of logits, looked at block by block: the largest of each block says where the likely tokens lie, so what follows need not
// touch the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pd2 {

struct Candidate {
    int32_t token = 0;
    float   logit = 0;
};

// Likelier first; of two that are equally likely, the one with the smaller id.
inline bool likelier(const Candidate & a, const Candidate & b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The n likeliest, sorted.
void keep_likeliest(std::vector<Candidate> & candidates, size_t n);

class Row {
  public:
    static constexpr size_t kBlock     = 256;
    static constexpr float  kForbidden = -std::numeric_limits<float>::infinity();
    static constexpr float  kLowest    = std::numeric_limits<float>::lowest();  // what is not forbidden reaches it

    Row() = default;

    // logits: [n_vocab], must stay where they are. changes: what some tokens have instead, each token once, in the
    // vocabulary's order.
    Row(const float * logits, int32_t n_vocab, std::vector<Candidate> changes);

    // Of the logits before the changes: none is NaN, and the largest is finite.
    bool finite() const { return finite_; }

    float   top() const { return top_; }  // the largest
    int32_t first_of_largest() const;
    float   of(int32_t token) const;

    size_t n_blocks() const { return largest_.size(); }

    // A block's first token and number of tokens.
    static int32_t first(size_t block) { return static_cast<int32_t>(block * kBlock); }
    size_t         size(size_t block) const;

    // A block's logits, in scratch [kBlock] where some are changed.
    const float * block(size_t block, float * scratch) const;

    // A logit that at least n tokens reach, and hardly more; kForbidden where n is beyond n_blocks().
    float reached_by(size_t n) const;

    // Appends the tokens with from <= logit < below, in the vocabulary's order.
    void select(float from, float below, std::vector<Candidate> & selected) const;

    // The n likeliest of all tokens, forbidden ones too, sorted.
    std::vector<Candidate> likeliest(size_t n) const;

    // [n_blocks] sums of exp((logit - top) / temperature), each to a float's precision.
    std::vector<double> masses(float temperature) const;

    // No less than what all tokens with a logit below `below` add to those sums.
    double rest(float below, float temperature) const;

  private:
    const float *          logits_  = nullptr;
    size_t                 n_vocab_ = 0;
    std::vector<Candidate> changes_;
    std::vector<float>     largest_;  // [n_blocks]
    float                  top_    = kForbidden;
    bool                   finite_ = false;
};

// A row's tokens, likeliest first, in groups that grow: who needs the head of a distribution sorts little more than that.
class Descent {
  public:
    explicit Descent(const Row & row) : row_(row) {}

    // Puts the next group into `group`, sorted; it may be empty. False when there are no more. Forbidden tokens are in none.
    bool next(std::vector<Candidate> & group);

    // All tokens that reach this logit have been given.
    float floor() const { return floor_; }

  private:
    const Row & row_;
    float       floor_ = std::numeric_limits<float>::infinity();
    size_t      n_ = 16;  // tokens the next group brings it to, while blocks can tell; then logits say how deep it goes
    int         steps_ = 0;
};

}  // namespace pd2
