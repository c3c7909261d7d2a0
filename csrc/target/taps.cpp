#include "taps.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-ext.h"

namespace pd2 {

namespace {

constexpr const char * kFinalNorm   = "result_norm";
constexpr const char * kLayerOutput = "l_out-";

std::string shape(const ggml_tensor * t) {
    return "[" + std::to_string(t->ne[0]) + ", " + std::to_string(t->ne[1]) + ", " + std::to_string(t->ne[2]) + "] " +
           ggml_type_name(t->type);
}

bool is_rows(const ggml_tensor * t, int64_t n_embd, int64_t n_rows) {
    return t->ne[0] == n_embd && t->ne[1] == n_rows && t->ne[2] == 1 && t->ne[3] == 1 &&
           t->nb[0] == ggml_type_size(t->type);
}

// A small graph of the context as a decode would build it: more rows than outputs, as in a prefill.
ggml_cgraph * sample_graph(llama_context * context, int32_t n_rows) {
    return llama_graph_reserve(context, n_rows, 1, 1);
}

int32_t sample_rows(int32_t n_batch) {
    return std::min(n_batch, 4);
}

}  // namespace

Taps::Taps(const std::vector<int32_t> & layers, int32_t n_layer, int32_t n_embd) : n_embd_(n_embd) {
    for (const int32_t layer : layers) {
        if (layer < 0 || layer >= n_layer) {
            fail(PD2_ERROR_HEAD_MISMATCH,
                 "the head reads the output of layer %d, but the target has layers 0 to %d: use the "
                 "target this head was trained for",
                 layer, n_layer - 1);
        }
        const bool is_final = layer == n_layer - 1;
        has_final_          = has_final_ || is_final;
        slots_.push_back({layer, is_final, is_final ? kFinalNorm : kLayerOutput + std::to_string(layer), false});
    }
}

bool Taps::wire(llama_context * context, const std::string & architecture, int32_t n_batch) {
    // Flagging a layer whose input the graph does not set aborts the process, so look at a graph without flags first.
    // DeepSeek 4 is the one graph that sets it only where flagged (the mean of its parallel streams).
    if (architecture != "deepseek4") {
        const int32_t n_rows = sample_rows(n_batch);
        if (sample_graph(context, n_rows) == nullptr) {
            return false;
        }
        const llm_graph_result * result = context->get_gf_res_reserve();
        for (const Slot & slot : slots_) {
            const ggml_tensor * input = slot.is_final ? nullptr : result->get_layer_inp(slot.layer + 1);
            // llama.cpp copies these rows as they lie: anything but plain floats would be cut or abort
            if (!slot.is_final && (input == nullptr || input->type != GGML_TYPE_F32 || !ggml_is_contiguous(input) ||
                                   !is_rows(input, n_embd_, n_rows))) {
                return false;
            }
        }
    }
    for (const Slot & slot : slots_) {
        if (!slot.is_final) {
            llama_set_embeddings_layer_inp(context, slot.layer + 1, true);
        }
    }
    // Flags stay for the context's life, read or not: changing one makes llama.cpp reserve all its buffers anew, which
    // costs more than the few rows that are copied.
    context->sched_reserve();
    wired_ = true;
    return true;
}

std::string Taps::obstacle(llama_context * context, int32_t n_batch) const {
    const int32_t n_rows = sample_rows(n_batch);
    ggml_cgraph * graph  = sample_graph(context, n_rows);
    if (graph == nullptr) {
        return "its graph could not be built";
    }
    for (const Slot & slot : slots_) {
        if (wired_ && !slot.is_final) {
            continue;
        }
        const ggml_tensor * node = ggml_graph_get_tensor(graph, slot.node.c_str());
        if (node == nullptr) {
            return "its graph has no tensor named " + slot.node;
        }
        if (!is_rows(node, n_embd_, slot.is_final ? node->ne[1] : n_rows)) {
            return "its tensor " + slot.node + " is " + shape(node) + " for " + std::to_string(n_rows) + " tokens of " +
                   std::to_string(n_embd_);
        }
    }
    return "";
}

void Taps::begin(bool reading, int32_t n_rows) {
    reading_ = reading && !empty();
    n_rows_  = n_rows;
    problem_.clear();
    if (reading_) {
        features_.resize(static_cast<size_t>(n_rows) * slots_.size() * n_embd_);
        for (Slot & slot : slots_) {
            slot.seen = false;
        }
    }
}

void Taps::end(llama_context * context) {
    if (!reading_) {
        return;
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
        Slot & slot = slots_[i];
        if (wired_ && !slot.is_final) {
            const float * rows = llama_get_embeddings_layer_inp(context, slot.layer + 1);  // [n_rows, n_embd]
            for (int32_t row = 0; row < n_rows_; ++row) {
                put(i, row, rows + static_cast<size_t>(row) * n_embd_, GGML_TYPE_F32);
            }
            slot.seen = true;
        }
        if (!slot.seen && problem_.empty()) {
            problem_ = "tensor " + slot.node + " did not come by";
        }
    }
    if (!problem_.empty()) {
        reading_ = false;
        fail(PD2_ERROR_NATIVE, "the target's features could not be read: %s; please report the target's architecture",
             problem_.c_str());
    }
}

bool Taps::on_node(ggml_tensor * node, bool ask, void * user_data) {
    Taps &       taps = *static_cast<Taps *>(user_data);
    const Slot * slot = taps.reading_ ? taps.find(node->name) : nullptr;
    if (ask) {
        return slot != nullptr;
    }
    for (size_t i = 0; i < taps.slots_.size(); ++i) {  // a head may read a layer twice
        if (taps.slots_[i].node == node->name) {
            taps.read(node, i);
        }
    }
    return true;  // go on with the graph
}

Taps::Slot * Taps::find(const char * node) {
    // called for every node of every graph: most differ in the first letters
    if (std::strncmp(node, kLayerOutput, 6) != 0 && std::strncmp(node, kFinalNorm, 6) != 0) {
        return nullptr;
    }
    const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                   [&](const Slot & s) { return (s.is_final || !wired_) && s.node == node; });
    return slot == slots_.end() ? nullptr : &*slot;
}

void Taps::read(const ggml_tensor * node, size_t slot) {
    if (!is_rows(node, n_embd_, n_rows_)) {
        problem_ = "tensor " + slots_[slot].node + " is " + shape(node) + " for " + std::to_string(n_rows_) +
                   " tokens of " + std::to_string(n_embd_);
        return;
    }
    raw_.resize(ggml_nbytes(node));
    ggml_backend_tensor_get(node, raw_.data(), 0, raw_.size());
    for (int32_t row = 0; row < n_rows_; ++row) {
        put(slot, row, raw_.data() + row * node->nb[1], node->type);
    }
    slots_[slot].seen = true;
}

void Taps::put(size_t slot, int32_t row, const void * source, ggml_type type) {
    float * destination = features_.data() + (static_cast<size_t>(row) * slots_.size() + slot) * n_embd_;
    if (type == GGML_TYPE_F32) {
        std::memcpy(destination, source, n_embd_ * sizeof(float));
    } else {
        ggml_get_type_traits(type)->to_float(source, destination, n_embd_);
    }
}

}  // namespace pd2
