#include "layers.h"

#include <algorithm>
#include <cmath>

namespace pd2 {

ggml_tensor * Builder::input(ggml_type type, int64_t ne0, int64_t ne1) {
    ggml_tensor * tensor = ggml_new_tensor_2d(ctx, type, ne0, ne1);
    ggml_set_input(tensor);
    return tensor;
}

RingInputs Builder::ring_inputs(Ring & ring, bool sliding, int32_t n) {
    RingInputs inputs;
    inputs.ring    = &ring;
    inputs.sliding = sliding;
    inputs.k_cells = input(GGML_TYPE_I64, n);
    inputs.v_cells = input(GGML_TYPE_I64, static_cast<int64_t>(n) * p.n_head_kv * p.head_dim);
    return inputs;
}

void Builder::add_masks(RingInputs & inputs, int32_t n, int32_t end) {
    inputs.n_visible = inputs.ring->n_visible(end);
    for (int32_t i = 0; i < p.n_layer; ++i) {
        ggml_tensor *& mask = inputs.mask[p.is_causal(i)];
        if (p.sliding[i] == inputs.sliding && !mask) {
            mask = input(GGML_TYPE_F32, inputs.n_visible, n);
        }
    }
}

ggml_tensor * Builder::linear(ggml_tensor * weight, ggml_tensor * x) {
    // With an F16 weight ggml converts the activations to F16, which end at 65,504; features, attention outputs and
    // gated products of real models pass that. A power of two before and after costs no precision.
    constexpr float kRange = 64;
    if (weight->type != GGML_TYPE_F16) {
        return ggml_mul_mat(ctx, weight, x);
    }
    return ggml_scale(ctx, ggml_mul_mat(ctx, weight, ggml_scale(ctx, x, 1 / kRange)), kRange);
}

ggml_tensor * Builder::norm(ggml_tensor * x, ggml_tensor * weight) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, p.rms_eps), weight);
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

ggml_tensor * Builder::convolve(ggml_tensor * x, ggml_tensor * dynamic, const Convolution & conv, int side) {
    const int64_t n      = x->ne[1];
    const int64_t groups = p.n_embd / p.conv_group;
    ggml_tensor * result = nullptr;
    for (int64_t tap = 0; tap < std::min<int64_t>(p.conv_kernel, n); ++tap) {
        ggml_tensor * values = x;  // [n_embd, n]
        if (tap > 0) {
            // Row i sees row i - tap; before the block there is nothing.
            ggml_tensor * before = ggml_view_2d(ctx, m.weights.zeros, p.n_embd, tap, m.weights.zeros->nb[1], 0);
            values               = ggml_concat(ctx, before, ggml_view_2d(ctx, x, p.n_embd, n - tap, x->nb[1], 0), 1);
        }
        ggml_tensor * base    = ggml_view_2d(ctx, conv.base, p.conv_group, groups, p.conv_group * sizeof(float),
                                             side * conv.base->nb[2] + tap * conv.base->nb[1]);  // [group, groups]
        ggml_tensor * gain    = ggml_view_3d(ctx, dynamic, 1, groups, n, sizeof(float), dynamic->nb[1],
                                             (side * p.conv_kernel + tap) * groups * sizeof(float));  // [1, groups, n]
        ggml_tensor * grouped = ggml_reshape_3d(ctx, values, p.conv_group, groups, n);  // [group, groups, n]
        ggml_tensor * term =
            ggml_add(ctx, ggml_mul(ctx, grouped, base), ggml_mul(ctx, grouped, gain));  // [group, groups, n]
        result = result ? ggml_add(ctx, result, term) : term;
    }
    return ggml_reshape_2d(ctx, result, p.n_embd, n);  // [n_embd, n]
}

void Builder::write_kv(int32_t layer, ggml_tensor * x, ggml_tensor * positions, const RingInputs & cells) {
    const Layer &      w     = m.weights.layers[layer];
    const LayerCache & cache = m.cache.layer(layer);
    const int64_t      n     = x->ne[1];
    const int64_t      width = static_cast<int64_t>(p.n_head_kv) * p.head_dim;

    ggml_tensor * k = linear(w.k, x);                                       // [width, n]
    k               = ggml_reshape_3d(ctx, k, p.head_dim, p.n_head_kv, n);  // [head_dim, n_head_kv, n]
    k               = rope(norm(k, w.k_norm), positions);                   // [head_dim, n_head_kv, n]
    k               = ggml_reshape_2d(ctx, k, width, n);                    // [width, n]
    ggml_build_forward_expand(gf, ggml_set_rows(ctx, cache.k, k, cells.k_cells));

    ggml_tensor * v     = linear(w.v, x);                                             // [width, n]
    ggml_tensor * items = ggml_reshape_2d(ctx, cache.v, 1, ggml_nelements(cache.v));  // [1, n_cells * width]
    ggml_build_forward_expand(gf, ggml_set_rows(ctx, items, ggml_reshape_2d(ctx, v, 1, width * n), cells.v_cells));
}

ggml_tensor * Builder::attention(int32_t layer, ggml_tensor * x, ggml_tensor * positions, const RingInputs & cells) {
    const Layer &      w     = m.weights.layers[layer];
    const LayerCache & cache = m.cache.layer(layer);
    const int64_t      n     = x->ne[1];
    const float scale = p.attention_scale != 0 ? p.attention_scale : 1 / std::sqrt(static_cast<float>(p.head_dim));

    write_kv(layer, x, positions, cells);

    ggml_tensor * q = ggml_reshape_3d(ctx, linear(w.q, x), p.head_dim, p.n_head, n);  // [head_dim, n_head, n]
    q               = rope(norm(q, w.q_norm), positions);                             // [head_dim, n_head, n]
    q               = ggml_permute(ctx, q, 0, 2, 1, 3);                               // [head_dim, n, n_head]

    const size_t  size = ggml_type_size(cache.k->type);
    ggml_tensor * k    = ggml_view_3d(ctx, cache.k, p.head_dim, cells.n_visible, p.n_head_kv, cache.k->nb[1],
                                      p.head_dim * size, 0);  // [head_dim, n_kv, n_head_kv]
    ggml_tensor * v    = ggml_view_3d(ctx, cache.v, cells.n_visible, p.head_dim, p.n_head_kv, cache.v->nb[1],
                                      p.head_dim * cache.v->nb[1], 0);  // [n_kv, head_dim, n_head_kv]

    ggml_tensor * weights = ggml_mul_mat(ctx, k, q);  // [n_kv, n, n_head]
    ggml_prec_set_acc(weights, GGML_PREC_F32);
    weights           = ggml_soft_max_ext(ctx, weights, cells.mask[p.is_causal(layer)], scale, 0);  // [n_kv, n, n_head]
    ggml_tensor * out = ggml_mul_mat(ctx, v, weights);       // [head_dim, n, n_head]
    out               = ggml_permute(ctx, out, 0, 2, 1, 3);  // [head_dim, n_head, n]
    out               = ggml_cont_2d(ctx, out, static_cast<int64_t>(p.n_head) * p.head_dim, n);
    if (p.attention_value_scale != 0) {
        out = ggml_scale(ctx, out, p.attention_value_scale);
    }
    return linear(w.o, out);  // [n_embd, n]
}

ggml_tensor * Builder::feed_forward(const Layer & layer, ggml_tensor * x) {
    ggml_tensor * gate = linear(layer.gate, x);  // [n_ff, n]
    ggml_tensor * up   = linear(layer.up, x);    // [n_ff, n]
    ggml_tensor * both = p.gelu ? ggml_geglu_split(ctx, gate, up) : ggml_swiglu_split(ctx, gate, up);
    return linear(layer.down, both);  // [n_embd, n]
}

}  // namespace pd2
