// A head's tensors, loaded and placed: on the first device that computes with each, else on the CPU.
#pragma once

#include <vector>

#include "ggml-backend.h"
#include "head_file.h"

namespace pd2 {

struct BufferFree {
    void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
};

using BufferPtr = std::unique_ptr<ggml_backend_buffer, BufferFree>;

// The dynamic convolution around one sublayer. Absent (null) in DFlash 1 heads.
struct Convolution {
    ggml_tensor * base       = nullptr;  // [n_embd, kernel, 2]
    ggml_tensor * projection = nullptr;  // [n_embd, 2 * kernel * groups], rows ordered side, tap, group
};

struct Layer {
    ggml_tensor * attn_norm = nullptr;  // [n_embd]
    ggml_tensor * q         = nullptr;  // [n_embd, n_head * head_dim]
    ggml_tensor * k         = nullptr;  // [n_embd, n_head_kv * head_dim]
    ggml_tensor * v         = nullptr;  // [n_embd, n_head_kv * head_dim]
    ggml_tensor * o         = nullptr;  // [n_head * head_dim, n_embd]
    ggml_tensor * q_norm    = nullptr;  // [head_dim]
    ggml_tensor * k_norm    = nullptr;  // [head_dim]
    ggml_tensor * ffn_norm  = nullptr;  // [n_embd]
    ggml_tensor * gate      = nullptr;  // [n_embd, n_ff]
    ggml_tensor * up        = nullptr;  // [n_embd, n_ff]
    ggml_tensor * down      = nullptr;  // [n_ff, n_embd]
    Convolution   attn_conv;
    Convolution   ffn_conv;
};

class Weights {
  public:
    Weights(HeadFile & file, const std::vector<ggml_backend_dev_t> & devices);

    ggml_tensor *      fc          = nullptr;  // [n_feature, n_embd]
    ggml_tensor *      fc_norm     = nullptr;  // [n_embd]
    ggml_tensor *      output_norm = nullptr;  // [n_embd]
    ggml_tensor *      predecessor = nullptr;  // [rank, n_vocab]
    ggml_tensor *      successor   = nullptr;  // [rank, n_vocab]
    ggml_tensor *      gate        = nullptr;  // [n_embd, rank]
    ggml_tensor *      token_embd  = nullptr;  // [n_embd, n_vocab] or null: borrowed
    ggml_tensor *      output      = nullptr;  // [n_embd, n_draft_vocab] or null: borrowed
    ggml_tensor *      draft_ids = nullptr;  // [1, n_draft_vocab] I32, the token id of each output row; null: the same
    ggml_tensor *      zeros     = nullptr;  // [n_embd, kernel - 1], what the convolution sees before the block
    std::vector<Layer> layers;

    uint64_t bytes() const { return bytes_; }

  private:
    // The operation a tensor feeds decides where it can live.
    enum class Use { matrix, rows, vector };

    ggml_tensor * declare(const char * name, Use use, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1);
    ggml_tensor * declare_layer(int layer, const char * name, Use use, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1);
    void          declare_all();
    void          allocate();
    void          read_all();
    void          read_draft_ids();

    // One group of tensors that share a buffer.
    struct Place {
        ggml_backend_dev_t device;
        ContextPtr         context;
        BufferPtr          buffer;
    };

    Place & place_for(const ggml_tensor * meta, Use use);

    HeadFile &         file_;
    std::vector<Place> places_;
    uint64_t           bytes_ = 0;
};

}  // namespace pd2
