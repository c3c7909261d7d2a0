// ggml expressions that the graphs are made of. Source of the formulas: `dflash/model.py` of the PyPI package dflash 0.1.0.
#pragma once

#include "graph.h"

namespace pd2 {

class Builder {
  public:
    // With an F16 weight ggml converts the activations to F16, which end at 65,504; features, attention outputs and gated products
    // of real models pass that. A power of two before and after costs no precision.
    static constexpr float kRange = 64;

    Builder(const Model & model, ggml_context * context, ggml_cgraph * graph)
        : m(model), p(model.params), ctx(context), gf(graph) {}

    ggml_tensor *            input(ggml_type type, int64_t ne0, int64_t ne1 = 1);
    ggml_tensor *            positions(int32_t n);
    std::vector<GroupInputs> groups(int32_t n);
    void                     add_masks(GroupInputs & inputs, int32_t n, int32_t end);
    const GroupInputs &      group_of(const std::vector<GroupInputs> & groups, int32_t layer) const;

    ggml_tensor * linear(ggml_tensor * weight, ggml_tensor * x);  // of rows that may be large
    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight, float eps_scale = 1);
    ggml_tensor * rope(ggml_tensor * x, ggml_tensor * positions);

    // Kernels of both convolutions around a sublayer, for each row. x: its normed input, [n_embd, n].
    ggml_tensor * kernels(ggml_tensor * x, const Convolution & conv);

    // side 0 stands before the sublayer, side 1 after it.
    ggml_tensor * convolve(ggml_tensor * x, ggml_tensor * kernels, int side);

    // K and V of rows context [n_embd, n] into the cells of all layers of a group.
    void write_context(ggml_tensor * context, ggml_tensor * positions, const GroupInputs & inputs);

    ggml_tensor * attention(int32_t layer, ggml_tensor * x, ggml_tensor * positions, const GroupInputs & inputs);
    ggml_tensor * feed_forward(const Layer & layer, ggml_tensor * x);

    const Model &      m;
    const HeadParams & p;
    ggml_context *     ctx;
    ggml_cgraph *      gf;

  private:
    // Rows [width, n] into the cells of one layer of the group, or of all.
    void write(ggml_tensor * cache, ggml_tensor * rows, size_t slot, const GroupInputs & inputs);
};

}  // namespace pd2
