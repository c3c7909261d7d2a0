#include "layers.h"

#include <algorithm>
#include <cmath>

namespace pd2 {

ggml_tensor * Builder::input(ggml_type type, int64_t ne0, int64_t ne1) {
    ggml_tensor * tensor = ggml_new_tensor_2d(ctx, type, ne0, ne1);
    ggml_set_input(tensor);
    return tensor;
}

ggml_tensor * Builder::positions(int32_t n) {
    return input(GGML_TYPE_I32, p.mrope ? 4LL * n : n);
}

std::vector<GroupInputs> Builder::groups(int32_t n) {
    std::vector<GroupInputs> result;
    for (CacheGroup & group : m.cache.groups()) {
        GroupInputs inputs;
        inputs.group = &group;
        inputs.cells = input(GGML_TYPE_I64, n);
        result.push_back(inputs);
    }
    return result;
}

void Builder::add_masks(GroupInputs & inputs, int32_t n, int32_t end) {
    inputs.n_visible = inputs.group->ring.n_visible(end);
    for (const int32_t layer : inputs.group->layers) {
        ggml_tensor *& mask = inputs.mask[p.is_causal(layer)];
        if (!mask) {
            mask = input(GGML_TYPE_F16, inputs.n_visible, n);
        }
    }
}

const GroupInputs & Builder::group_of(const std::vector<GroupInputs> & groups, int32_t layer) const {
    const bool sliding = p.sliding[static_cast<size_t>(layer)];
    return groups.front().group->sliding == sliding ? groups.front() : groups.back();
}

ggml_tensor * Builder::linear(ggml_tensor * weight, ggml_tensor * x) {
    if (weight->type != GGML_TYPE_F16) {
        return ggml_mul_mat(ctx, weight, x);
    }
    return ggml_scale(ctx, ggml_mul_mat(ctx, weight, ggml_scale(ctx, x, 1 / kRange)), kRange);
}

ggml_tensor * Builder::norm(ggml_tensor * x, ggml_tensor * weight, float eps_scale) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, p.rms_eps * eps_scale), weight);
}

ggml_tensor * Builder::rope(ggml_tensor * x, ggml_tensor * positions) {
    if (p.mrope) {
        int sections[GGML_MROPE_SECTIONS];
        std::copy(std::begin(p.rope_sections), std::end(p.rope_sections), sections);
        return ggml_rope_multi(ctx, x, positions, nullptr, p.n_rot, sections, GGML_ROPE_TYPE_MROPE, p.rope_context,
                               p.rope_base, p.rope_scale, p.yarn_ext_factor, p.yarn_attn_factor, p.yarn_beta_fast,
                               p.yarn_beta_slow);
    }
    return ggml_rope_ext(ctx, x, positions, nullptr, p.n_rot, GGML_ROPE_TYPE_NEOX, p.rope_context, p.rope_base,
                         p.rope_scale, p.yarn_ext_factor, p.yarn_attn_factor, p.yarn_beta_fast, p.yarn_beta_slow);
}

ggml_tensor * Builder::kernels(ggml_tensor * x, const Convolution & conv) {
    const int64_t n       = x->ne[1];
    const int64_t groups  = p.n_embd / p.conv_group;
    const int64_t taps    = 2LL * p.conv_kernel;                                // of both sides
    ggml_tensor * dynamic = ggml_mul_mat(ctx, conv.projection, x);              // [taps * groups, n]
    dynamic               = ggml_reshape_4d(ctx, dynamic, 1, groups, taps, n);  // [1, groups, taps, n]
    const size_t  row     = conv.base->nb[1];
    ggml_tensor * base = ggml_view_4d(ctx, conv.base, p.conv_group, groups, taps, n, p.conv_group * sizeof(float), row,
                                      conv.base->nb[2], 0);  // [group, groups, taps, n]
    return ggml_add(ctx, base, dynamic);                     // [group, groups, taps, n]
}

ggml_tensor * Builder::convolve(ggml_tensor * x, ggml_tensor * kernels, int side) {
    const int64_t n      = x->ne[1];
    const int64_t groups = p.n_embd / p.conv_group;
    const int64_t taps   = p.conv_kernel;
    const size_t  row    = static_cast<size_t>(p.n_embd) * sizeof(float);
    ggml_tensor * padded = taps > 1 ? ggml_concat(ctx, m.weights.zeros, x, 1) : x;  // [n_embd, taps - 1 + n]

    // Row i sees rows i - taps + 1 .. i, before the block there is nothing: rows overlap, which ggml's view only takes when its
    // taps are added afterwards.
    ggml_tensor * values = ggml_view_4d(ctx, padded, p.conv_group, groups, 1, n, p.conv_group * sizeof(float), row, row,
                                        0);  // [group, groups, taps, n]
    values->ne[2]        = taps;
    ggml_tensor * own    = ggml_view_4d(ctx, kernels, p.conv_group, groups, taps, n, kernels->nb[1], kernels->nb[2],
                                        kernels->nb[3], side * taps * kernels->nb[2]);  // [group, groups, taps, n]
    ggml_tensor * terms  = ggml_mul(ctx, own, values);                                  // [group, groups, taps, n]
    ggml_tensor * result = nullptr;
    for (int64_t tap = 0; tap < taps; ++tap) {
        ggml_tensor * term = ggml_view_2d(ctx, terms, p.n_embd, n, terms->nb[3], tap * terms->nb[2]);  // [n_embd, n]
        result             = result ? ggml_add(ctx, result, term) : term;
    }
    return taps > 1 ? result : ggml_cont(ctx, result);  // [n_embd, n]
}

void Builder::write(ggml_tensor * cache, ggml_tensor * rows, size_t slot, const GroupInputs & inputs) {
    ggml_tensor * into =
        ggml_view_2d(ctx, cache, rows->ne[0], cache->ne[1], cache->nb[1],
                     ggml_row_size(cache->type, static_cast<int64_t>(slot) * p.n_head_kv * p.head_dim));
    ggml_build_forward_expand(gf, ggml_set_rows(ctx, into, rows, inputs.cells));
}

void Builder::write_context(ggml_tensor * context, ggml_tensor * positions, const GroupInputs & inputs) {
    const CacheGroup &  group = *inputs.group;
    const ContextSide & side  = m.weights.context[group.sliding];
    const int64_t       n     = context->ne[1];
    const int64_t       width = static_cast<int64_t>(p.n_head_kv) * p.head_dim;

    const auto keys = [&](ggml_tensor * weight, ggml_tensor * k_norm, int64_t n_layers) {
        ggml_tensor * k = ggml_mul_mat(ctx, weight, context);  // [n_layers * width, n]
        k               = ggml_reshape_4d(ctx, k, p.head_dim, p.n_head_kv, n_layers, n);
        k               = norm(k, ggml_reshape_3d(ctx, k_norm, p.head_dim, 1, n_layers));
        k               = rope(ggml_reshape_3d(ctx, k, p.head_dim, p.n_head_kv * n_layers, n), positions);
        return ggml_reshape_2d(ctx, k, n_layers * width, n);
    };
    if (side.k) {
        write(group.k, keys(side.k, side.k_norm, static_cast<int64_t>(group.layers.size())), 0, inputs);
    }
    if (side.v) {
        write(group.v, ggml_mul_mat(ctx, side.v, context), 0, inputs);
    }
    for (size_t slot = 0; slot < group.layers.size(); ++slot) {
        const Layer & layer = m.weights.layers[static_cast<size_t>(group.layers[slot])];
        if (!side.k) {
            write(group.k, keys(layer.k, layer.k_norm, 1), slot, inputs);
        }
        if (!side.v) {
            write(group.v, ggml_mul_mat(ctx, layer.v, context), slot, inputs);
        }
    }
}

ggml_tensor * Builder::attention(int32_t layer, ggml_tensor * x, ggml_tensor * positions, const GroupInputs & inputs) {
    const Layer &      w     = m.weights.layers[static_cast<size_t>(layer)];
    const CacheGroup & group = *inputs.group;
    const int64_t      n     = x->ne[1];
    const float scale = p.attention_scale != 0 ? p.attention_scale : 1 / std::sqrt(static_cast<float>(p.head_dim));
    const auto  slot =
        static_cast<size_t>(std::find(group.layers.begin(), group.layers.end(), layer) - group.layers.begin());

    ggml_tensor * k = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w.k, x), p.head_dim, p.n_head_kv, n);
    k               = rope(norm(k, w.k_norm), positions);  // [head_dim, n_head_kv, n]
    write(group.k, ggml_reshape_2d(ctx, k, static_cast<int64_t>(p.n_head_kv) * p.head_dim, n), slot, inputs);
    write(group.v, ggml_mul_mat(ctx, w.v, x), slot, inputs);

    ggml_tensor * q = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w.q, x), p.head_dim, p.n_head, n);
    q               = rope(norm(q, w.q_norm), positions);  // [head_dim, n_head, n]
    q               = ggml_permute(ctx, q, 0, 2, 1, 3);    // [head_dim, n, n_head]

    const auto cached = [&](ggml_tensor * cache) {  // [head_dim, n_visible, n_head_kv]
        const size_t offset = ggml_row_size(cache->type, static_cast<int64_t>(slot) * p.n_head_kv * p.head_dim);
        return ggml_view_3d(ctx, cache, p.head_dim, inputs.n_visible, p.n_head_kv, cache->nb[1],
                            ggml_row_size(cache->type, p.head_dim), offset);
    };
    ggml_tensor * mask = inputs.mask[p.is_causal(layer)];
    ggml_tensor * out  = nullptr;
    if (m.flash) {
        out =
            ggml_flash_attn_ext(ctx, q, cached(group.k), cached(group.v), mask, scale, 0, 0);  // [head_dim, n_head, n]
        ggml_prec_set_acc(out, GGML_PREC_F32);
    } else {
        ggml_tensor * weights = ggml_mul_mat(ctx, cached(group.k), q);  // [n_visible, n, n_head]
        ggml_prec_set_acc(weights, GGML_PREC_F32);
        weights = ggml_soft_max_ext(ctx, weights, mask, scale, 0);  // [n_visible, n, n_head]
        ggml_tensor * v =
            ggml_cont(ctx, ggml_permute(ctx, cached(group.v), 1, 0, 2, 3));  // [n_visible, head_dim, n_head_kv]
        out = ggml_mul_mat(ctx, v, weights);                                 // [head_dim, n, n_head]
        out = ggml_cont(ctx, ggml_permute(ctx, out, 0, 2, 1, 3));            // [head_dim, n_head, n]
    }
    out = ggml_reshape_2d(ctx, out, static_cast<int64_t>(p.n_head) * p.head_dim, n);
    if (p.attention_value_scale != 0) {
        out = ggml_scale(ctx, out, p.attention_value_scale);
    }
    return linear(w.o, out);  // [n_embd, n]
}

ggml_tensor * Builder::feed_forward(const Layer & layer, ggml_tensor * x) {
    ggml_tensor * both = nullptr;  // [n_ff, n]
    if (layer.gate_up) {
        ggml_tensor * gate_up = ggml_mul_mat(ctx, layer.gate_up, x);  // [2 * n_ff, n]
        both                  = p.gelu ? ggml_geglu(ctx, gate_up) : ggml_swiglu(ctx, gate_up);
    } else {
        ggml_tensor * gate = ggml_mul_mat(ctx, layer.gate, x);
        ggml_tensor * up   = ggml_mul_mat(ctx, layer.up, x);
        both               = p.gelu ? ggml_geglu_split(ctx, gate, up) : ggml_swiglu_split(ctx, gate, up);
    }
    return linear(layer.down, both);  // [n_embd, n]
}

}  // namespace pd2
