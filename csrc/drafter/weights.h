// A head's tensors, loaded and placed: on the first device that computes with each, else on the CPU. Tensors of one type that
// are multiplied with the same rows lie behind each other, so that one product takes them all.
#pragma once

#include <vector>

#include "ggml-backend.h"
#include "head_file.h"

namespace pd2 {

struct BufferFree {
    void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
};

using BufferPtr = std::unique_ptr<ggml_backend_buffer, BufferFree>;

// Where a tensor of a buffer lies.
ggml_backend_dev_t device_of(const ggml_tensor * tensor);

ContextPtr new_context(size_t n_tensors);  // for descriptions only; throws when memory is short

// The dynamic convolution around one sublayer, its taps in reverse: the one that looks back furthest comes first. Absent (null)
// in DFlash 1 heads.
struct Convolution {
    ggml_tensor * base       = nullptr;  // [n_embd, 2 * kernel, block_size], the same for every row; sides, then taps
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
    ggml_tensor * gate_up   = nullptr;  // [n_embd, 2 * n_ff], or null where their types differ
    ggml_tensor * gate      = nullptr;  // [n_embd, n_ff], a part of gate_up where that exists
    ggml_tensor * up        = nullptr;  // [n_embd, n_ff]
    ggml_tensor * down      = nullptr;  // [n_ff, n_embd]
    Convolution   attn_conv;
    Convolution   ffn_conv;
};

// What injection multiplies at once: of all sliding, or of all full layers, in order.
struct ContextSide {
    ggml_tensor * k      = nullptr;  // [n_embd, n_layers * n_head_kv * head_dim], or null where types differ
    ggml_tensor * v      = nullptr;  // [n_embd, n_layers * n_head_kv * head_dim], or null where types differ
    ggml_tensor * k_norm = nullptr;  // [head_dim, n_layers]
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
    ContextSide        context[2];  // of full layers, of sliding ones

    uint64_t bytes() const { return bytes_; }

    std::vector<TensorPlace> places() const;  // of the file's tensors

    // All on `device`, where one graph can reach them without copies.
    bool all_on(ggml_backend_dev_t device) const;

  private:
    // The operation a tensor feeds decides where it can live.
    enum class Use { matrix, rows, vector };

    // Bytes of the file that belong into a tensor: as they are, or in as many equal pieces as `order` names, in that order.
    struct Part {
        const ggml_tensor *  source;
        ggml_tensor *        into;
        size_t               offset = 0;  // in `into`
        int64_t              copies = 1;  // one behind the other
        std::vector<int64_t> order  = {};
    };

    const ggml_tensor * claim(const std::string & name, Use use, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1);
    ggml_tensor *       make(const std::string & name, Use use, ggml_type type, int64_t ne0, int64_t ne1 = 1,
                             int64_t ne2 = 1);
    ggml_tensor *       declare(const std::string & name, Use use, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1);

    // Matrices [ne0, ne1] behind each other as one, null where their types differ; parts: views of it, or the matrices.
    ggml_tensor * stack(const std::vector<std::string> & names, int64_t ne0, int64_t ne1,
                        const std::vector<ggml_tensor **> & parts);

    void declare_all();
    void declare_layer(int32_t i);
    void declare_context(bool sliding);
    void declare_convolution(Convolution & conv, const std::string & base, const std::string & projection);
    void allocate();
    void read_all();
    void read_draft_ids();

    // One group of tensors that share a buffer.
    struct Place {
        ggml_backend_dev_t device;
        ContextPtr         context;
        BufferPtr          buffer;
    };

    Place & place_for(const char * name, ggml_type type, int64_t ne0, int64_t ne1, Use use);

    HeadFile &         file_;
    std::vector<Place> places_;
    std::vector<Part>  parts_;
    uint64_t           bytes_ = 0;
};

}  // namespace pd2
