// The drafter's two computations as ggml graphs: inject (features -> K and V of committed positions) and block (anchor
// and mask rows -> lattice). A graph is built once for its shape, allocated, and computed many times with new inputs.
#pragma once

#include <vector>

#include "cache.h"

namespace pd2 {

struct SchedFree {
    void operator()(ggml_backend_sched * sched) const { ggml_backend_sched_free(sched); }
};

using SchedPtr = std::unique_ptr<ggml_backend_sched, SchedFree>;

// What graphs are made of.
struct Model {
    const HeadParams & params;
    const Weights &    weights;
    Cache &            cache;
    ggml_tensor *      token_embd;    // [n_embd, n_vocab]
    ggml_tensor *      output;        // [n_embd, n_draft_vocab]
    ggml_tensor *      output_scale;  // [1] or null
    ggml_tensor *      output_bias;   // [n_draft_vocab] or null
};

// Inputs that depend on the kind of layer; null where the head has no such layer.
struct RingInputs {
    Ring *        ring      = nullptr;
    bool          sliding   = false;
    int32_t       n_visible = 0;        // cells attention looks at
    ggml_tensor * k_cells   = nullptr;  // [n] I64, the cell of each row
    ggml_tensor * v_cells   = nullptr;  // [n * n_head_kv * head_dim] I64, the place of each element in the transposed V
    ggml_tensor * mask[2] = {nullptr, nullptr};  // [n_visible, n] F32, 0 or -inf: both ways, causal; block graphs only
};

class Graph {
  public:
    virtual ~Graph() = default;

    // Allocates on the given back ends, the CPU last; throws when memory is short.
    void     allocate(const std::vector<ggml_backend_t> & backends);
    void     compute();
    uint64_t bytes() const;

  protected:
    explicit Graph(size_t n_nodes);

    ContextPtr    context_;
    ggml_cgraph * graph_ = nullptr;

  private:
    SchedPtr                    sched_;
    std::vector<ggml_backend_t> backends_;
};

class InjectGraph : public Graph {
  public:
    InjectGraph(const Model & model, int32_t n);

    void run(const float * features, int32_t position);

    int32_t n() const { return n_; }

  private:
    const Model & model_;
    int32_t       n_;
    ggml_tensor * features_;   // [n_feature, n]
    ggml_tensor * positions_;  // [n] or [4 n]
    RingInputs    sliding_;
    RingInputs    full_;
};

class BlockGraph : public Graph {
  public:
    // `end`: the position after the block's last row; decides how much of the cache is looked at.
    BlockGraph(const Model & model, int32_t width, int32_t end);

    bool fits(int32_t end) const;
    void run(int32_t anchor, int32_t position, Lattice & lattice);

  private:
    void build_lattice(ggml_tensor * hidden);
    void set_mask(const RingInputs & inputs, bool causal, int32_t position);

    const Model & model_;
    int32_t       width_;
    ggml_tensor * tokens_;                // [n] I32: anchor, mask, mask ...
    ggml_tensor * positions_;             // [n] or [4 n]
    ggml_tensor * candidates_ = nullptr;  // k * width I32, token ids
    ggml_tensor * unary_      = nullptr;  // [1, k, width]
    ggml_tensor * first_      = nullptr;  // [k, 1], scores after the anchor; null in DFlash 1
    ggml_tensor * scores_     = nullptr;  // [k successor, k predecessor, width - 1]; null in DFlash 1 and at width 1
    RingInputs    sliding_;
    RingInputs    full_;
};

// Candidates a DFlash 1 head reports; it has no selector, so they are for the caller's information.
constexpr int32_t kCandidatesV1 = 16;

}  // namespace pd2
