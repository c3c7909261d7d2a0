// Many texts decoded side by side, plainly: what training data are made with. A text's tokens depend on its prompt, its
// settings and its seed, not on its slot or its neighbours, up to what kernels round.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "random.h"
#include "sequence.h"
#include "target/target.h"

namespace pd2 {

class Batch {
  public:
    // text_size: tokens a text can have, prompt included. n_top: likeliest tokens reported beside each chosen one.
    // The target must outlive the batch.
    Batch(const Target & target, int32_t n_texts, int32_t text_size, int32_t n_top);

    // Puts a new text into a slot, in the place of what was there.
    void begin(int32_t slot, const int32_t * tokens, int32_t n_tokens, const Sequence::Settings & settings);
    void end(int32_t slot);

    struct Chosen {
        int32_t slot     = 0;
        int32_t token    = 0;
        bool    is_end   = false;  // an end-of-generation token
        bool    finished = false;  // that, or the text has text_size tokens
    };

    struct Step {
        std::vector<Chosen>  chosen;      // [n] by slot
        std::vector<int32_t> top_tokens;  // [n, n_top] likeliest first
        std::vector<float>   top;         // [n, n_top] log softmax of the logits, before any sampler
    };

    // Reads on in prompts, batch_size tokens at most, then chooses a token for every text whose prompt has been read. Slots
    // of finished texts rest until they are begun anew.
    const Step & step();

  private:
    struct Text {
        std::vector<int32_t>     tokens;
        int32_t                  n_read = 0;  // in the stream; all but the last token when a row can be decoded
        bool                     live   = false;
        std::unique_ptr<Sampler> sampler;
        Random                   random{0};
    };

    Text & at(int32_t slot);
    void   read_prompts();
    void   choose();
    void   judge(size_t row, Random & random);

    const Target &           target_;
    const int32_t            n_vocab_;
    const int32_t            text_size_;
    const size_t             n_top_;
    std::unique_ptr<Streams> streams_;
    std::vector<Text>        texts_;
    Step                     step_;
};

}  // namespace pd2
