// What the next token is drawn from. A few tokens are listed; of a whole vocabulary there is only the row of logits, and what
// its blocks weigh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row.h"

namespace pd2 {

class Distribution {
  public:
    Distribution() = default;

    // softmax(logits / temperature), over the candidates alone or over a row, whose logits must stay where they are.
    Distribution(const std::vector<Candidate> & candidates, float temperature);
    Distribution(Row row, float temperature);

    double of(int32_t token) const;

    // The tokens lie in blocks, so that one can be drawn without a look at all. What is listed is one block.
    size_t n_blocks() const { return masses_.empty() ? 1 : masses_.size(); }
    double mass(size_t block) const { return masses_.empty() ? 1 : masses_[block]; }
    size_t block_of(int32_t token) const;  // where it is if it is anywhere

    // A block's tokens and their probabilities.
    void list(size_t block, std::vector<int32_t> & tokens, std::vector<double> & probabilities) const;

  private:
    double weight(float logit) const;

    double               top_         = 0;  // the largest logit
    double               temperature_ = 1;
    std::vector<int32_t> tokens_;
    std::vector<double>  probabilities_;
    Row                  row_;
    double               total_ = 1;
    std::vector<double>  masses_;  // [n_blocks], of a row
};

}  // namespace pd2
