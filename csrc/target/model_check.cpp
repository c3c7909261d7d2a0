#include "model_check.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "error.h"
#include "ggml-cpu.h"
#include "llama-model.h"

namespace pd2 {

namespace {

const ggml_tensor * owner(const ggml_tensor * tensor) {
    return tensor->view_src ? tensor->view_src : tensor;
}

bool is_weight(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = owner(tensor)->buffer;
    return owner(tensor)->op == GGML_OP_NONE && buffer != nullptr &&
           ggml_backend_buffer_get_usage(buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

bool on_cpu(const ggml_tensor * node, const std::vector<ggml_backend_dev_t> & devices) {
    return std::none_of(devices.begin(), devices.end(), [&](ggml_backend_dev_t device) {
        return ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU &&
               ggml_backend_dev_supports_op(device, node);
    });
}

bool cpu_takes(const ggml_tensor * node, int source) {
    const ggml_type type = node->src[source]->type;
    switch (node->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            return source != 0 || ggml_get_type_traits_cpu(type)->vec_dot != nullptr;
        case GGML_OP_GET_ROWS:
            return type == GGML_TYPE_F32 || type == GGML_TYPE_I32 || ggml_get_type_traits_cpu(type)->vec_dot != nullptr;
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_DUP:
            return ggml_get_type_traits_cpu(type)->vec_dot != nullptr;
        default:
            return type == GGML_TYPE_F32 || type == node->type;
    }
}

// A multimodal rope asserts that text has a part in its sections.
bool rope_has_no_sections(const ggml_tensor * node) {
    if (node->op != GGML_OP_ROPE || (node->op_params[2] & GGML_ROPE_TYPE_MROPE) == 0) {
        return false;
    }
    return std::all_of(node->op_params + 11, node->op_params + 14, [](int32_t section) { return section <= 0; });
}

}  // namespace

void check_vocabulary(const llama_vocab * vocab, const std::string & path) {
    if (llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_RWKV) {
        return;
    }
    // RWKV's tokenizer goes back to the text's beginning where a byte starts tokens, but is none by itself.
    std::array<bool, 256> starts = {}, alone = {};
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        std::array<char, 512> bytes = {};
        const int32_t n = llama_token_to_piece(vocab, token, bytes.data(), static_cast<int32_t>(bytes.size()), 0, true);
        if (n > 0) {
            const auto first = static_cast<uint8_t>(bytes[0]);
            starts[first]    = true;
            alone[first]     = alone[first] || n == 1;
        }
    }
    for (size_t byte = 0; byte < starts.size(); ++byte) {
        if (starts[byte] && !alone[byte]) {
            fail(
                PD2_ERROR_MODEL_FILE,
                "the target '%s' is damaged (its vocabulary lacks a token for the byte %zu alone): download or convert "
                "it again",
                path.c_str(), byte);
        }
    }
}

void check_graph(ggml_cgraph * graph, const std::vector<ggml_backend_dev_t> & devices, const std::string & path) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        for (int source = 0; source < GGML_MAX_SRC && node->src[source] != nullptr; ++source) {
            const ggml_tensor * weight = node->src[source];
            if (is_weight(weight) && !cpu_takes(node, source) && on_cpu(node, devices)) {
                fail(PD2_ERROR_MODEL_FILE,
                     "the target '%s' is damaged (%s has type %s, with which %s cannot be computed): download or "
                     "convert it again",
                     path.c_str(), owner(weight)->name, ggml_type_name(weight->type), ggml_op_name(node->op));
            }
        }
        if (rope_has_no_sections(node)) {
            fail(PD2_ERROR_MODEL_FILE,
                 "the target '%s' is damaged (its rope.dimension_sections are missing or empty): download or convert "
                 "it again",
                 path.c_str());
        }
    }
}

double cache_bytes(const llama_model & model, ggml_type type, int32_t n_tokens, int32_t windowed) {
    const llama_hparams & hparams = model.hparams;
    double                bytes   = 0;
    for (uint32_t layer = 0; layer < hparams.n_layer(); ++layer) {
        if (hparams.has_kv(layer) && !hparams.is_recr(layer)) {
            const int32_t cells = hparams.is_swa(layer) ? windowed : n_tokens;
            bytes += static_cast<double>(cells) * static_cast<double>(ggml_row_size(type, hparams.n_embd_k_gqa(layer)) +
                                                                      ggml_row_size(type, hparams.n_embd_v_gqa(layer)));
        }
    }
    return bytes;
}

}  // namespace pd2
