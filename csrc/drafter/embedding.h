// Rows of a token table, read on the host: a block has just two different ones, the anchor's and the mask's, and the table may lie
// where the drafter's device does not reach.
#pragma once

#include <vector>

#include "ggml-backend.h"

namespace pd2 {

class Embedding {
  public:
    // scale: of every row, the anchor's included.
    Embedding(ggml_tensor * table, float scale, int32_t mask_token);

    // [width + 1, n_embd]: anchor, mask, mask ... Valid until the next call.
    const float * block(int32_t anchor, int32_t width);

    const ggml_tensor * table() const { return table_; }

  private:
    void read(int32_t token, float * row);

    ggml_tensor *        table_;  // [n_embd, n_vocab]
    float                scale_;
    std::vector<float>   rows_;  // the mask's row again and again, behind one for the anchor
    std::vector<float>   mask_;
    std::vector<uint8_t> raw_;
};

}  // namespace pd2
