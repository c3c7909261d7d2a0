#include "weights.h"

#include <cinttypes>
#include <string>

#include "error.h"

namespace pd2 {
namespace {

constexpr size_t kMaxTensors = 8192;

ContextPtr new_context() {
    ggml_init_params params = {kMaxTensors * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/true};
    ContextPtr       context(ggml_init(params));
    if (!context) {
        fail(PD2_ERROR_MEMORY, "no memory for the head's tensor descriptions; free some and try again");
    }
    return context;
}

}  // namespace

Weights::Weights(HeadFile & file, const std::vector<ggml_backend_dev_t> & devices) : file_(file) {
    for (ggml_backend_dev_t device : devices) {
        places_.push_back({device, new_context(), nullptr});
    }
    declare_all();
    file_.refuse_unclaimed();
    allocate();
    read_all();
}

void Weights::declare_all() {
    const HeadParams & p       = file_.params();
    const int64_t      n_q     = static_cast<int64_t>(p.n_head) * p.head_dim;
    const int64_t      n_kv    = static_cast<int64_t>(p.n_head_kv) * p.head_dim;
    const int64_t      dynamic = p.version == 2 ? 2LL * p.conv_kernel * (p.n_embd / p.conv_group) : 0;

    fc          = declare("fc.weight", Use::matrix, p.n_feature, p.n_embd);
    fc_norm     = declare("enc.output_norm.weight", Use::vector, p.n_embd);
    output_norm = declare("output_norm.weight", Use::vector, p.n_embd);
    if (p.version == 2) {
        predecessor = declare("selector_predecessor.weight", Use::rows, p.rank, p.n_vocab);
        successor   = declare("selector_successor.weight", Use::rows, p.rank, p.n_vocab);
        gate        = declare("selector_hidden.weight", Use::matrix, p.n_embd, p.rank);
        zeros       = ggml_new_tensor_2d(places_.front().context.get(), GGML_TYPE_F32, p.n_embd,
                                         std::max(1, p.conv_kernel - 1));  // [n_embd, kernel - 1]
    }
    if (p.own_embedding) {
        token_embd = declare("token_embd.weight", Use::rows, p.n_embd, p.n_vocab);
    }
    if (p.own_output) {
        // Tied: the file has one tensor, read by rows and by matrix product alike.
        output =
            file_.find("output.weight") ? declare("output.weight", Use::matrix, p.n_embd, p.n_draft_vocab) : token_embd;
    }
    if (file_.find("d2t")) {
        file_.claim("d2t", p.n_draft_vocab);
        draft_ids = ggml_new_tensor_2d(places_.front().context.get(), GGML_TYPE_I32, 1, p.n_draft_vocab);
    }

    layers.resize(p.n_layer);
    for (int i = 0; i < p.n_layer; ++i) {
        Layer & layer   = layers[i];
        layer.attn_norm = declare_layer(i, "attn_norm.weight", Use::vector, p.n_embd);
        layer.q         = declare_layer(i, "attn_q.weight", Use::matrix, p.n_embd, n_q);
        layer.k         = declare_layer(i, "attn_k.weight", Use::matrix, p.n_embd, n_kv);
        layer.v         = declare_layer(i, "attn_v.weight", Use::matrix, p.n_embd, n_kv);
        layer.o         = declare_layer(i, "attn_output.weight", Use::matrix, n_q, p.n_embd);
        layer.q_norm    = declare_layer(i, "attn_q_norm.weight", Use::vector, p.head_dim);
        layer.k_norm    = declare_layer(i, "attn_k_norm.weight", Use::vector, p.head_dim);
        layer.ffn_norm  = declare_layer(i, "ffn_norm.weight", Use::vector, p.n_embd);
        layer.gate      = declare_layer(i, "ffn_gate.weight", Use::matrix, p.n_embd, p.n_ff);
        layer.up        = declare_layer(i, "ffn_up.weight", Use::matrix, p.n_embd, p.n_ff);
        layer.down      = declare_layer(i, "ffn_down.weight", Use::matrix, p.n_ff, p.n_embd);
        if (p.version == 2) {
            for (auto [conv, base, projection] :
                 {std::tuple(&layer.attn_conv, "attn_conv_base", "attn_conv_proj.weight"),
                  std::tuple(&layer.ffn_conv, "ffn_conv_base", "ffn_conv_proj.weight")}) {
                conv->base       = declare_layer(i, base, Use::vector, p.n_embd, p.conv_kernel, 2);
                conv->projection = declare_layer(i, projection, Use::matrix, p.n_embd, dynamic);
            }
        }
    }
}

ggml_tensor * Weights::declare_layer(int layer, const char * name, Use use, int64_t ne0, int64_t ne1, int64_t ne2) {
    return declare(("blk." + std::to_string(layer) + "." + name).c_str(), use, ne0, ne1, ne2);
}

ggml_tensor * Weights::declare(const char * name, Use use, int64_t ne0, int64_t ne1, int64_t ne2) {
    const ggml_tensor * meta = file_.claim(name, ne0, ne1, ne2);
    const bool          computes =
        meta->type == GGML_TYPE_F32 || (use != Use::vector && ggml_get_type_traits(meta->type)->to_float != nullptr);
    if (!computes) {
        fail(PD2_ERROR_HEAD_FORMAT, "%s: %s has type %s, which cannot be computed with here; convert it to %s",
             file_.path().c_str(), name, ggml_type_name(meta->type), use == Use::vector ? "f32" : "f16 or q8_0");
    }
    ggml_tensor * tensor = ggml_dup_tensor(place_for(meta, use).context.get(), meta);
    ggml_set_name(tensor, name);
    return tensor;
}

Weights::Place & Weights::place_for(const ggml_tensor * meta, Use use) {
    for (Place & place : places_) {
        // Ask with a stand-in for the real operation. The empty buffer tells the device where the weight would be.
        ContextPtr    context = new_context();
        ggml_tensor * weight  = ggml_dup_tensor(context.get(), meta);
        BufferPtr     empty(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(place.device), 0));
        weight->buffer = empty.get();

        ggml_tensor * op = nullptr;
        switch (use) {
            case Use::matrix:
                op = ggml_mul_mat(context.get(), weight,
                                  ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, meta->ne[0], 8));
                break;
            case Use::rows:
                op = ggml_get_rows(context.get(), weight, ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 8));
                break;
            case Use::vector:
                op = ggml_mul(context.get(), ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, meta->ne[0], 8),
                              ggml_view_1d(context.get(), weight, meta->ne[0], 0));
                break;
        }
        if (ggml_backend_dev_supports_op(place.device, op)) {
            return place;
        }
    }
    fail(PD2_ERROR_HEAD_FORMAT, "%s: no device here computes with %s (%s); convert the head to f16 or q8_0",
         file_.path().c_str(), meta->name, ggml_type_name(meta->type));
}

void Weights::allocate() {
    for (Place & place : places_) {
        if (!ggml_get_first_tensor(place.context.get())) {
            continue;
        }
        ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(place.device);
        place.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(place.context.get(), type));
        if (!place.buffer) {
            fail(PD2_ERROR_MEMORY,
                 "%s: no memory on %s for the head's weights; use a smaller quantisation or fewer GPU "
                 "layers",
                 file_.path().c_str(), ggml_backend_dev_name(place.device));
        }
        ggml_backend_buffer_set_usage(place.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        bytes_ += ggml_backend_buffer_get_size(place.buffer.get());
    }
}

void Weights::read_all() {
    std::vector<uint8_t> staging;
    for (Place & place : places_) {
        for (ggml_tensor * tensor = ggml_get_first_tensor(place.context.get()); tensor;
             tensor               = ggml_get_next_tensor(place.context.get(), tensor)) {
            if (tensor == zeros || tensor == draft_ids) {
                continue;
            }
            if (ggml_backend_buffer_is_host(tensor->buffer)) {
                file_.read(tensor, tensor->data);
            } else {
                staging.resize(ggml_nbytes(tensor));
                file_.read(tensor, staging.data());
                ggml_backend_tensor_set(tensor, staging.data(), 0, staging.size());
            }
        }
    }
    if (zeros) {
        ggml_backend_tensor_memset(zeros, 0, 0, ggml_nbytes(zeros));
    }
    if (draft_ids) {
        read_draft_ids();
    }
}

void Weights::read_draft_ids() {
    const char *        path    = file_.path().c_str();
    const int32_t       n_vocab = file_.params().n_vocab;
    const ggml_tensor * d2t     = file_.find("d2t");
    const int64_t       n       = d2t->ne[0];

    std::vector<int64_t> wide(n);
    std::vector<int32_t> ids(n);
    if (d2t->type == GGML_TYPE_I64) {
        file_.read(d2t, wide.data());
    } else if (d2t->type == GGML_TYPE_I32) {
        file_.read(d2t, ids.data());
        wide.assign(ids.begin(), ids.end());
    } else {
        fail(PD2_ERROR_HEAD_FORMAT, "%s: d2t has type %s, token ids are i64 or i32; convert the head again", path,
             ggml_type_name(d2t->type));
    }
    std::vector<bool> seen(n_vocab, false);
    for (int64_t i = 0; i < n; ++i) {
        if (wide[i] < 0 || wide[i] >= n_vocab) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: d2t maps row %" PRId64 " to token %" PRId64 ", outside 0..%d; convert the head again", path, i,
                 wide[i], n_vocab - 1);
        }
        ids[i] = static_cast<int32_t>(wide[i]);
        // Checkpoints store id minus row: a file that copied those maps many rows to one token.
        if (seen[ids[i]]) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: d2t maps two rows to token %d; it must hold token ids, not offsets; convert the head again", path,
                 ids[i]);
        }
        seen[ids[i]] = true;
    }
    ggml_backend_tensor_set(draft_ids, ids.data(), 0, ids.size() * sizeof(int32_t));
}

}  // namespace pd2
