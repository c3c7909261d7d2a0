// Hidden states of the tapped layers, read while the target decodes.
//
// llama.cpp offers two ways. About twenty graphs are wired: they hand out each layer's input, and layer i's output is
// layer i + 1's input. All others name their layer outputs "l_out-<i>", which the scheduler's evaluation callback can
// read. The last layer is read after the final norm in both cases ("result_norm"), as Hugging Face's hidden_states do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"

namespace pd2 {

class Taps {
  public:
    Taps() = default;
    Taps(const std::vector<int32_t> & layers, int32_t n_layer, int32_t n_embd);

    bool    empty() const { return slots_.empty(); }
    int32_t size() const { return static_cast<int32_t>(slots_.size()); }
    bool    wired() const { return wired_; }

    // llama.cpp computes the final norm for rows with logits only.
    bool need_every_output() const { return has_final_; }

    // Asks the graph of a new context to hand out the layers. False, and nothing is changed, where it cannot.
    bool wire(llama_context * context, const std::string & architecture, int32_t n_batch);

    // For a context made with on_node as its callback: why a layer cannot be read, or "" when all can.
    std::string obstacle(llama_context * context, int32_t n_batch) const;

    void begin(bool reading, int32_t n_rows);  // before a decode
    void end(llama_context * context);         // after it; throws when a row is missing

    // Of the last decode that was read, [n_rows, n_taps * n_embd].
    const float * features() const { return features_.data(); }
    int32_t       n_rows() const { return reading_ ? n_rows_ : 0; }

    // ggml_backend_sched_eval_callback; user_data is the Taps, which must not move.
    static bool on_node(ggml_tensor * node, bool ask, void * user_data);

  private:
    struct Slot {
        int32_t     layer;
        bool        is_final;
        std::string node;  // the tensor's name in the graph
        bool        seen;  // in this decode
    };

    Slot * find(const char * node);
    void   read(const ggml_tensor * node, size_t slot);
    void   put(size_t slot, int32_t row, const void * source, ggml_type type);

    std::vector<Slot>    slots_;  // in fc's order
    int32_t              n_embd_    = 0;
    bool                 has_final_ = false;
    bool                 wired_     = false;
    bool                 reading_   = false;
    int32_t              n_rows_    = 0;
    std::vector<float>   features_;
    std::vector<uint8_t> raw_;
    std::string          problem_;  // the callback must not throw through ggml
};

}  // namespace pd2
