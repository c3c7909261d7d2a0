// ggml expressions that both graphs are made of. Source of the formulas: `dflash/model.py` of the PyPI package dflash
// 0.1.0.
#pragma once

#include "graph.h"

namespace pd2 {

class Builder {
  public:
    Builder(const Model & model, ggml_context * context, ggml_cgraph * graph)
        : m(model), p(model.params), ctx(context), gf(graph) {}

    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1 = 1);
    RingInputs    ring_inputs(Ring & ring, bool sliding, int32_t n);
    void          add_masks(RingInputs & inputs, int32_t n, int32_t end);

    ggml_tensor * linear(ggml_tensor * weight, ggml_tensor * x);
    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight);
    ggml_tensor * rope(ggml_tensor * x, ggml_tensor * positions);

    // side 0 stands before the sublayer, side 1 after it. dynamic: the projection of the sublayer's normed input.
    ggml_tensor * convolve(ggml_tensor * x, ggml_tensor * dynamic, const Convolution & conv, int side);

    // K and V of rows x [n_embd, n] into the layer's cells.
    void write_kv(int32_t layer, ggml_tensor * x, ggml_tensor * positions, const RingInputs & cells);

    ggml_tensor * attention(int32_t layer, ggml_tensor * x, ggml_tensor * positions, const RingInputs & cells);
    ggml_tensor * feed_forward(const Layer & layer, ggml_tensor * x);

    const Model &      m;
    const HeadParams & p;
    ggml_context *     ctx;
    ggml_cgraph *      gf;
};

}  // namespace pd2
