// The tokens that drafts are made of. The largest thing a drafter reads is the target's output head over the whole vocabulary, for
// a draft that is verified anyway: here are its rows for the tokens that texts consist of, copied as they are, quantised, from the
// target's file (tensors in memory may be repacked, or on a device that does not give out rows). With all tokens it is a copy of the
// output head, for a drafter whose device does not reach the target's.
#pragma once

#include <string>
#include <vector>

#include "weights.h"

namespace pd2 {

class DraftVocabulary {
  public:
    struct Source {
        std::string   path;              // the target's file
        ggml_tensor * output = nullptr;  // [n_embd, n_vocab] as loaded: type and shape
        ggml_tensor * scale  = nullptr;  // [1] or null
        ggml_tensor * bias   = nullptr;  // [n_vocab] or null
    };

    // ranked: all token ids, the ones that are needed most first. The first n are taken at first; n: all of them at most. Throws
    // PD2_ERROR_MODEL_FILE where the file does not hold the rows.
    DraftVocabulary(const Source & source, const std::vector<int32_t> & ranked, int32_t n, ggml_backend_dev_t device);

    ggml_tensor * output() const { return output_; }  // [n_embd, n]
    ggml_tensor * scale() const { return scale_; }    // [1] or null
    ggml_tensor * bias() const { return bias_; }      // [n] or null
    ggml_tensor * ids() const { return ids_; }        // [1, n] I32; null: row i is token i
    uint64_t      bytes() const { return ggml_backend_buffer_get_size(buffer_.get()); }

    // A new text: back to the frequent tokens, as if there had been none before, so that a text's drafts depend on it alone.
    void begin();

    // The text has these tokens: those that are missing take the places of the rare ones, or of the ones taken in longest ago.
    void take_in(const int32_t * tokens, int32_t n);

    // How many of a vocabulary.
    static int32_t choose(int32_t n_vocab);

  private:
    void find_rows(const Source & source);
    void read_rows(int32_t first, int32_t n, uint8_t * rows);
    void replace(int32_t row, int32_t token);

    std::string          path_;
    FilePtr              file_;
    uint64_t             offset_   = 0;  // of the first row in the file
    size_t               row_size_ = 0;
    ContextPtr           context_;
    BufferPtr            buffer_;
    ggml_tensor *        output_      = nullptr;
    ggml_tensor *        scale_       = nullptr;
    ggml_tensor *        bias_        = nullptr;
    ggml_tensor *        ids_         = nullptr;
    ggml_tensor *        source_bias_ = nullptr;
    std::vector<int32_t> token_of_;     // [n]
    std::vector<int32_t> row_of_;       // [n_vocab], -1: not here
    int32_t              first_spare_;  // rows from here on are given to the tokens of the text
    int32_t              next_spare_;
    int32_t              n_taken_ = 0;  // rows from first_spare_ on that may hold other tokens than spares_ says
    std::vector<int32_t> spares_;       // the frequent tokens of the rows from first_spare_ on
    std::vector<uint8_t> staging_;
};

}  // namespace pd2
