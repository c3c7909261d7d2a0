// The drafter's computations as ggml graphs. A graph is built once for its shape, allocated once, and computed many times with
// new inputs: `Inject` writes K and V of committed positions from their features; `Round` does so for the few positions
// of the last round and computes the next block (anchor and mask rows -> lattice) in the same go.
#pragma once

#include <vector>

#include "cache.h"
#include "compute.h"

namespace pd2 {

// What graphs are made of.
struct Model {
    const HeadParams & params;
    const Weights &    weights;
    Cache &            cache;
    ggml_tensor *      output;        // [n_embd, n_draft_vocab]
    ggml_tensor *      output_scale;  // [1] or null
    ggml_tensor *      output_bias;   // [n_draft_vocab] or null
    ggml_tensor *      draft_ids;     // [1, n_draft_vocab] I32, token ids of the output's rows; null: the same
    bool               flash;         // one operation for attention, where the device has it for this head's size
};

// Rows of one kind of layer (CacheGroup): where their K and V go, and, for a block, what its rows see.
struct GroupInputs {
    CacheGroup *  group     = nullptr;
    int32_t       n_visible = 0;                   // cells attention looks at
    ggml_tensor * cells     = nullptr;             // [n] I64, the cell of each row
    ggml_tensor * mask[2]   = {nullptr, nullptr};  // [n_visible, n] F16, 0 or -inf: both ways, causal
};

// False for views, which only give a tensor another shape.
bool computes(const ggml_tensor * node);

class Graph {
  public:
    virtual ~Graph() = default;

    // True when that moved the memory of graphs allocated before.
    bool allocate(Compute & compute);

    int32_t n_nodes() const;   // those that compute something: no views
    int32_t n_splits() const;  // parts that run on one device each

    std::vector<OperationPlace> operations() const;  // what computes something, where; once allocated

    bool runs_on(ggml_backend_dev_t device) const;     // whether it has all operations
    bool attends_on(ggml_backend_dev_t device) const;  // whether it has the operation for attention in this head's size

  protected:
    explicit Graph(size_t n_nodes);

    void run(int32_t n_rows);

    ContextPtr    context_;
    ggml_cgraph * graph_ = nullptr;

  private:
    Compute * compute_ = nullptr;
    SchedPtr  sched_;
};

// Features of n positions on their way into the cache: part of both graphs.
class Injection {
  public:
    Injection(const Model & model, ggml_context * context, ggml_cgraph * graph, int32_t n);

    // features: [n_used, n_feature] of positions position .. position + n_used - 1; the other rows go to the trash.
    void set(const float * features, int32_t n_used, int32_t position);

    int32_t n() const { return n_; }

  private:
    const Model &            model_;
    int32_t                  n_;
    float                    scale_;      // of the features, see Builder::kRange
    ggml_tensor *            features_;   // [n_feature, n]
    ggml_tensor *            positions_;  // [n] or [4 n]
    std::vector<GroupInputs> groups_;
    std::vector<float>       staging_;
};

class InjectGraph : public Graph {
  public:
    InjectGraph(const Model & model, int32_t n);

    // features: [n_used, n_feature] of positions position .. position + n_used - 1.
    void run(const float * features, int32_t n_used, int32_t position);

    int32_t n() const { return injection_.n(); }

  private:
    Injection injection_;
};

class RoundGraph : public Graph {
  public:
    // n_inject: rows of the injection, 1 at least. end: the position after the block's last row; decides how much of the
    // cache is looked at.
    RoundGraph(const Model & model, int32_t n_inject, int32_t width, int32_t end);

    bool fits(int32_t end) const;

    // pending: features [n_pending, n_feature] of the positions before the anchor's. embeddings: [n_embd, width + 1].
    void run(const float * pending, int32_t n_pending, const float * embeddings, int32_t anchor, int32_t position,
             Lattice & lattice);

  private:
    void build_block();
    void build_lattice(ggml_tensor * hidden);
    void set_mask(const GroupInputs & inputs, bool causal, int32_t position);
    void read(Lattice & lattice) const;

    const Model &            model_;
    int32_t                  width_;
    Injection                injection_;
    ggml_tensor *            embeddings_;            // [n_embd, n]
    ggml_tensor *            positions_;             // [n] or [4 n]
    ggml_tensor *            anchors_    = nullptr;  // [k] I32, the anchor k times; null in DFlash 1
    ggml_tensor *            candidates_ = nullptr;  // k * width I32, token ids
    ggml_tensor *            unary_      = nullptr;  // [1, k, width]
    ggml_tensor *            scores_     = nullptr;  // [k successor, k predecessor, width]; null in DFlash 1
    std::vector<GroupInputs> groups_;
    std::vector<ggml_fp16_t> mask_;
};

// Candidates a DFlash 1 head reports; it has no selector, so they are for the caller's information.
constexpr int32_t kCandidatesV1 = 16;

}  // namespace pd2
