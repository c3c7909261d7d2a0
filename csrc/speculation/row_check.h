// Whether a row's logits depend, bit for bit, on how many rows are decoded with it. Kernels switch by that number, and then
// a speculative text is no longer certain to be the plain one.
#pragma once

#include <vector>

#include "target/target.h"

namespace pd2 {

class RowCheck {
  public:
    // After `depth` pseudo-random tokens, max_rows more of them are decoded row by row, then 2 .. max_rows at once. probe
    // chooses the tokens. The target is used exclusively and is empty in the end.
    RowCheck(Target & target, int32_t max_rows, int32_t depth, int32_t probe);

    // One decode. False when it was the last.
    bool step();

    // [max_rows]: the largest |difference| of a logit at 1 .. max_rows rows so far, 0 exactly when all bits are equal, infinite
    // where one is not a number. At 1 row the text before has been decoded in smaller pieces.
    const std::vector<float> & differences() const { return differences_; }

  private:
    void decode(int32_t n, Target::Logits logits);
    void compare(int32_t rows, int32_t reference);
    bool next();

    Target &             target_;
    const int32_t        max_rows_;
    const int32_t        depth_;
    const int32_t        n_vocab_;
    const bool           recurrent_;
    std::vector<int32_t> tokens_;     // [depth + max_rows]
    std::vector<float>   reference_;  // [max_rows, n_vocab] decoded row by row
    std::vector<float>   differences_;
    int32_t              rows_        = 0;  // compared now; 0: the reference is being made
    bool                 rolled_back_ = false;
};

}  // namespace pd2
