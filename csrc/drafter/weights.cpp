#include "weights.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string>

#include "error.h"

namespace pd2 {
namespace {

constexpr size_t kMaxTensors = 8192;

std::string layer_name(int32_t layer, const char * name) {
    return "blk." + std::to_string(layer) + "." + name;
}

}  // namespace

ggml_backend_dev_t device_of(const ggml_tensor * tensor) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    return device ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);  // a file's mapped pages
}

ContextPtr new_context(size_t n_tensors) {
    ggml_init_params params = {n_tensors * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/true};
    ContextPtr       context(ggml_init(params));
    if (!context) {
        fail(PD2_ERROR_MEMORY, "no memory for the head's tensor descriptions; free some and try again");
    }
    return context;
}

Weights::Weights(HeadFile & file, const std::vector<ggml_backend_dev_t> & devices) : file_(file) {
    for (ggml_backend_dev_t device : devices) {
        places_.push_back({device, new_context(kMaxTensors), nullptr});
    }
    declare_all();
    file_.refuse_unclaimed();
    allocate();
    read_all();
}

bool Weights::all_on(ggml_backend_dev_t device) const {
    for (const Place & place : places_) {
        if (place.buffer && place.device != device) {
            return false;
        }
    }
    return true;
}

std::vector<TensorPlace> Weights::places() const {
    std::vector<TensorPlace> places;
    for (const Part & part : parts_) {
        places.push_back({part.source->name, part.source->type, device_of(part.into), ggml_nbytes(part.source), false});
    }
    return places;
}

void Weights::declare_all() {
    const HeadParams & p = file_.params();

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
    layers.resize(static_cast<size_t>(p.n_layer));
    declare_context(false);
    declare_context(true);
    for (int32_t i = 0; i < p.n_layer; ++i) {
        declare_layer(i);
    }
}

void Weights::declare_context(bool sliding) {
    const HeadParams &          p    = file_.params();
    const int64_t               n_kv = static_cast<int64_t>(p.n_head_kv) * p.head_dim;
    std::vector<std::string>    k_names, v_names, norm_names;
    std::vector<ggml_tensor **> k_parts, v_parts;
    for (int32_t i = 0; i < p.n_layer; ++i) {
        if (p.sliding[static_cast<size_t>(i)] == sliding) {
            k_names.push_back(layer_name(i, "attn_k.weight"));
            v_names.push_back(layer_name(i, "attn_v.weight"));
            norm_names.push_back(layer_name(i, "attn_k_norm.weight"));
            k_parts.push_back(&layers[static_cast<size_t>(i)].k);
            v_parts.push_back(&layers[static_cast<size_t>(i)].v);
        }
    }
    if (k_names.empty()) {
        return;
    }
    ContextSide & side = context[sliding];
    side.k             = stack(k_names, p.n_embd, n_kv, k_parts);
    side.v             = stack(v_names, p.n_embd, n_kv, v_parts);
    side.k_norm = make("k_norm", Use::vector, GGML_TYPE_F32, p.head_dim, static_cast<int64_t>(norm_names.size()));
    for (size_t i = 0; i < norm_names.size(); ++i) {
        parts_.push_back({claim(norm_names[i], Use::vector, p.head_dim), side.k_norm, i * side.k_norm->nb[1]});
    }
}

void Weights::declare_layer(int32_t i) {
    const HeadParams & p     = file_.params();
    const int64_t      n_q   = static_cast<int64_t>(p.n_head) * p.head_dim;
    const auto         name  = [&](const char * suffix) { return layer_name(i, suffix); };
    Layer &            layer = layers[static_cast<size_t>(i)];
    layer.attn_norm          = declare(name("attn_norm.weight"), Use::vector, p.n_embd);
    layer.q                  = declare(name("attn_q.weight"), Use::matrix, p.n_embd, n_q);
    layer.o                  = declare(name("attn_output.weight"), Use::matrix, n_q, p.n_embd);
    layer.q_norm             = declare(name("attn_q_norm.weight"), Use::vector, p.head_dim);
    layer.k_norm             = declare(name("attn_k_norm.weight"), Use::vector, p.head_dim);
    layer.ffn_norm           = declare(name("ffn_norm.weight"), Use::vector, p.n_embd);
    layer.gate_up = stack({name("ffn_gate.weight"), name("ffn_up.weight")}, p.n_embd, p.n_ff, {&layer.gate, &layer.up});
    layer.down    = declare(name("ffn_down.weight"), Use::matrix, p.n_ff, p.n_embd);
    if (p.version == 2) {
        declare_convolution(layer.attn_conv, name("attn_conv_base"), name("attn_conv_proj.weight"));
        declare_convolution(layer.ffn_conv, name("ffn_conv_base"), name("ffn_conv_proj.weight"));
    }
}

// Taps are turned round so that one view of the padded rows shows each row's taps in order. The base is there once for each
// row of a block: ggml's sums repeat their second operand only, and that is the projection.
void Weights::declare_convolution(Convolution & conv, const std::string & base, const std::string & projection) {
    const HeadParams &   p      = file_.params();
    const int64_t        kernel = p.conv_kernel;
    const int64_t        groups = p.n_embd / p.conv_group;
    std::vector<int64_t> order;
    for (int64_t side = 0; side < 2; ++side) {
        for (int64_t tap = kernel - 1; tap >= 0; --tap) {
            order.push_back(side * kernel + tap);
        }
    }
    const ggml_tensor * base_meta = claim(base, Use::vector, p.n_embd, kernel, 2);
    const ggml_tensor * proj_meta = claim(projection, Use::matrix, p.n_embd, 2 * kernel * groups);

    conv.base       = make(base, Use::vector, GGML_TYPE_F32, p.n_embd, 2 * kernel, p.block_size);
    conv.projection = make(projection, Use::matrix, proj_meta->type, p.n_embd, 2 * kernel * groups);
    parts_.push_back({base_meta, conv.base, 0, p.block_size, order});
    parts_.push_back({proj_meta, conv.projection, 0, 1, order});
}

ggml_tensor * Weights::stack(const std::vector<std::string> & names, int64_t ne0, int64_t ne1,
                             const std::vector<ggml_tensor **> & parts) {
    std::vector<const ggml_tensor *> metas;
    bool                             same = true;
    for (const std::string & name : names) {
        metas.push_back(claim(name, Use::matrix, ne0, ne1));
        same = same && metas.back()->type == metas.front()->type;
    }
    ggml_tensor * whole = nullptr;
    if (same) {
        whole = make(names.front(), Use::matrix, metas.front()->type, ne0, ne1 * static_cast<int64_t>(names.size()));
    }
    for (size_t i = 0; i < names.size(); ++i) {
        if (whole) {
            Place &      place  = place_for(names[i].c_str(), whole->type, ne0, ne1, Use::matrix);
            const size_t offset = i * static_cast<size_t>(ne1) * whole->nb[1];
            parts_.push_back({metas[i], whole, offset});
            *parts[i] = ggml_view_2d(place.context.get(), whole, ne0, ne1, whole->nb[1], offset);
        } else {
            *parts[i] = declare(names[i], Use::matrix, ne0, ne1);
        }
    }
    return whole;
}

const ggml_tensor * Weights::claim(const std::string & name, Use use, int64_t ne0, int64_t ne1, int64_t ne2) {
    const ggml_tensor * meta = file_.claim(name, ne0, ne1, ne2);
    const bool          computes =
        meta->type == GGML_TYPE_F32 || (use != Use::vector && ggml_get_type_traits(meta->type)->to_float != nullptr);
    if (!computes) {
        fail(PD2_ERROR_HEAD_FORMAT, "%s: %s has type %s, which cannot be computed with here; convert it to %s",
             file_.path().c_str(), name.c_str(), ggml_type_name(meta->type),
             use == Use::vector ? "f32" : "f16 or q8_0");
    }
    return meta;
}

ggml_tensor * Weights::make(const std::string & name, Use use, ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    Place &       place  = place_for(name.c_str(), type, ne0, ne1, use);
    ggml_tensor * tensor = ggml_new_tensor_3d(place.context.get(), type, ne0, ne1, ne2);
    ggml_set_name(tensor, name.c_str());
    return tensor;
}

ggml_tensor * Weights::declare(const std::string & name, Use use, int64_t ne0, int64_t ne1, int64_t ne2) {
    const ggml_tensor * meta   = claim(name, use, ne0, ne1, ne2);
    ggml_tensor *       tensor = make(name, use, meta->type, ne0, ne1, ne2);
    parts_.push_back({meta, tensor});
    return tensor;
}

Weights::Place & Weights::place_for(const char * name, ggml_type type, int64_t ne0, int64_t ne1, Use use) {
    for (Place & place : places_) {
        // Ask with a stand-in for the real operation. The empty buffer tells the device where the weight would be.
        ContextPtr    context = new_context(8);
        ggml_tensor * weight  = ggml_new_tensor_2d(context.get(), type, ne0, ne1);
        BufferPtr     empty(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(place.device), 0));
        weight->buffer = empty.get();

        ggml_tensor * op = nullptr;
        switch (use) {
            case Use::matrix:
                op = ggml_mul_mat(context.get(), weight, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, ne0, 8));
                break;
            case Use::rows:
                op = ggml_get_rows(context.get(), weight, ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 8));
                break;
            case Use::vector:
                op = ggml_mul(context.get(), ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, ne0, 8),
                              ggml_view_1d(context.get(), weight, ne0, 0));
                break;
        }
        if (ggml_backend_dev_supports_op(place.device, op)) {
            return place;
        }
    }
    fail(PD2_ERROR_HEAD_FORMAT, "%s: no device here computes with %s (%s); convert the head to f16 or q8_0",
         file_.path().c_str(), name, ggml_type_name(type));
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
                 "%s: no memory on %s for the head's weights; use a smaller quantisation, fewer GPU layers for the "
                 "target, or "
                 "another draft_device",
                 file_.path().c_str(), ggml_backend_dev_name(place.device));
        }
        ggml_backend_buffer_set_usage(place.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        bytes_ += ggml_backend_buffer_get_size(place.buffer.get());
    }
}

void Weights::read_all() {
    std::vector<uint8_t> staging, turned;
    for (const Part & part : parts_) {
        const size_t bytes = ggml_nbytes(part.source);
        if (part.order.empty() && ggml_backend_buffer_is_host(part.into->buffer)) {
            file_.read(part.source, static_cast<uint8_t *>(part.into->data) + part.offset);
            continue;
        }
        staging.resize(bytes);
        file_.read(part.source, staging.data());
        if (!part.order.empty()) {
            const size_t run = bytes / part.order.size();
            turned.resize(bytes);
            for (size_t i = 0; i < part.order.size(); ++i) {
                std::memcpy(turned.data() + i * run, staging.data() + static_cast<size_t>(part.order[i]) * run, run);
            }
            staging.swap(turned);
        }
        for (int64_t i = 0; i < part.copies; ++i) {
            ggml_backend_tensor_set(part.into, staging.data(), part.offset + static_cast<size_t>(i) * bytes, bytes);
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
