#include "graph.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "layers.h"

namespace pd2 {
namespace {

// Nodes a graph makes at most, views included: a layer takes about 90, each further tap of a convolution 4 more.
size_t node_budget(const HeadParams & params) {
    return 256 + static_cast<size_t>(params.n_layer) * (128 + 16 * static_cast<size_t>(params.conv_kernel));
}

void set_positions(ggml_tensor * tensor, const HeadParams & params, int32_t position, int32_t n) {
    // M-RoPE takes four numbers a row: time, height, width, and one that text leaves 0.
    std::vector<int32_t> values(static_cast<size_t>(params.mrope ? 4 * n : n), 0);
    for (size_t i = 0; i < values.size(); ++i) {
        const int32_t axis = static_cast<int32_t>(i) / n;
        values[i]          = axis < 3 ? position + static_cast<int32_t>(i) % n : 0;
    }
    ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(int32_t));
}

// The first n_used rows go to the cells of their positions, the others to the trash.
void set_cells(const GroupInputs & inputs, int32_t position, int32_t n_used) {
    const Ring &         ring = inputs.group->ring;
    std::vector<int64_t> cells(static_cast<size_t>(inputs.cells->ne[0]), ring.trash());
    for (int32_t i = 0; i < n_used; ++i) {
        cells[static_cast<size_t>(i)] = ring.cell(position + i);
    }
    ggml_backend_tensor_set(inputs.cells, cells.data(), 0, cells.size() * sizeof(int64_t));
}

}  // namespace

bool computes(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return false;
        default:
            return true;
    }
}

Graph::Graph(size_t n_nodes) {
    const size_t     size   = n_nodes * ggml_tensor_overhead() * 2 + ggml_graph_overhead_custom(n_nodes, false);
    ggml_init_params params = {size, nullptr, /*.no_alloc =*/true};
    context_.reset(ggml_init(params));
    if (!context_) {
        fail(PD2_ERROR_MEMORY, "no memory to build the drafter's graph; free some and try again");
    }
    graph_ = ggml_new_graph_custom(context_.get(), n_nodes, /*grads =*/false);
}

bool Graph::allocate(Compute & compute) {
    compute_ = &compute;
    return compute.allocate(graph_, sched_);
}

void Graph::run(int32_t n_rows) {
    compute_->run(graph_, sched_.get(), n_rows);
}

int32_t Graph::n_nodes() const {
    int32_t n = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        n += computes(ggml_graph_node(graph_, i));
    }
    return n;
}

int32_t Graph::n_splits() const {
    return sched_ ? ggml_backend_sched_get_n_splits(sched_.get()) : 1;
}

std::vector<OperationPlace> Graph::operations() const {
    std::vector<OperationPlace> places;
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        ggml_tensor * node = ggml_graph_node(graph_, i);
        if (!computes(node)) {
            continue;
        }
        ggml_backend_dev_t device = compute_->device_of(node, sched_.get());
        const auto         known  = std::find_if(places.begin(), places.end(), [&](const OperationPlace & place) {
            return place.op == node->op && place.device == device;
        });
        if (known != places.end()) {
            ++known->n;
        } else {
            places.push_back({node->op, device, 1});
        }
    }
    return places;
}

bool Graph::runs_on(ggml_backend_dev_t device) const {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph_, i);
        if (computes(node) && !ggml_backend_dev_supports_op(device, node)) {
            return false;
        }
    }
    return true;
}

bool Graph::attends_on(ggml_backend_dev_t device) const {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph_, i);
        if (node->op == GGML_OP_FLASH_ATTN_EXT && !ggml_backend_dev_supports_op(device, node)) {
            return false;
        }
    }
    return true;
}

Injection::Injection(const Model & model, ggml_context * context, ggml_cgraph * graph, int32_t n)
    : model_(model), n_(n), scale_(model.weights.fc->type == GGML_TYPE_F16 ? 1 / Builder::kRange : 1) {
    Builder            b(model, context, graph);
    const HeadParams & p = model.params;

    features_  = b.input(GGML_TYPE_F32, p.n_feature, n);  // [n_feature, n]
    positions_ = b.positions(n);
    groups_    = b.groups(n);
    // The norm takes the scale out again, with an eps scaled by its square.
    ggml_tensor * rows = ggml_mul_mat(b.ctx, model.weights.fc, features_);      // [n_embd, n]
    rows               = b.norm(rows, model.weights.fc_norm, scale_ * scale_);  // [n_embd, n]
    for (const GroupInputs & inputs : groups_) {
        b.write_context(rows, positions_, inputs);
    }
}

void Injection::set(const float * features, int32_t n_used, int32_t position) {
    const auto n_feature = static_cast<size_t>(model_.params.n_feature);
    if (scale_ != 1 || n_used < n_) {
        staging_.assign(static_cast<size_t>(n_) * n_feature, 0);
        for (size_t i = 0; i < static_cast<size_t>(n_used) * n_feature; ++i) {
            staging_[i] = features[i] * scale_;
        }
        features = staging_.data();
    }
    ggml_backend_tensor_set(features_, features, 0, ggml_nbytes(features_));
    set_positions(positions_, model_.params, position, n_);
    for (const GroupInputs & inputs : groups_) {
        set_cells(inputs, position, n_used);
    }
}

InjectGraph::InjectGraph(const Model & model, int32_t n)
    : Graph(node_budget(model.params)), injection_(model, context_.get(), graph_, n) {}

void InjectGraph::run(const float * features, int32_t n_used, int32_t position) {
    injection_.set(features, n_used, position);
    Graph::run(n());
}

RoundGraph::RoundGraph(const Model & model, int32_t n_inject, int32_t width, int32_t end)
    : Graph(2 * node_budget(model.params)),
      model_(model),
      width_(width),
      injection_(model, context_.get(), graph_, n_inject) {
    Builder            b(model, context_.get(), graph_);
    const HeadParams & p = model.params;
    const int32_t      n = width + 1;

    embeddings_ = b.input(GGML_TYPE_F32, p.n_embd, n);  // [n_embd, n]
    positions_  = b.positions(n);
    groups_     = b.groups(n);
    for (GroupInputs & inputs : groups_) {
        b.add_masks(inputs, n, end);
    }
    build_block();
}

void RoundGraph::build_block() {
    Builder            b(model_, context_.get(), graph_);
    const HeadParams & p = model_.params;
    ggml_tensor *      h = embeddings_;  // [n_embd, n]
    for (int32_t i = 0; i < p.n_layer; ++i) {
        const Layer & layer    = model_.weights.layers[static_cast<size_t>(i)];
        const auto    sublayer = [&](ggml_tensor * norm, const Convolution & conv, auto && inner) {
            ggml_tensor * x = b.norm(h, norm);  // [n_embd, n]
            if (conv.base) {
                ggml_tensor * kernels = b.kernels(x, conv);
                x                     = b.convolve(inner(b.convolve(x, kernels, 0)), kernels, 1);
            } else {
                x = inner(x);
            }
            h = ggml_add(b.ctx, h, x);
        };
        sublayer(layer.attn_norm, layer.attn_conv,
                 [&](ggml_tensor * x) { return b.attention(i, x, positions_, b.group_of(groups_, i)); });
        sublayer(layer.ffn_norm, layer.ffn_conv, [&](ggml_tensor * x) { return b.feed_forward(layer, x); });
    }
    // The anchor's own row has done its work: only the predicted rows go on.
    h = ggml_view_2d(b.ctx, h, p.n_embd, width_, h->nb[1], h->nb[1]);  // [n_embd, width]
    build_lattice(b.norm(h, model_.weights.output_norm));
}

void RoundGraph::build_lattice(ggml_tensor * hidden) {
    Builder            b(model_, context_.get(), graph_);
    const HeadParams & p   = model_.params;
    ggml_context *     ctx = b.ctx;

    ggml_tensor * logits = ggml_mul_mat(ctx, model_.output, hidden);  // [n_draft_vocab, width]
    if (model_.output_scale) {
        logits = ggml_mul(ctx, logits, model_.output_scale);
    }
    if (model_.output_bias) {
        logits = ggml_add(ctx, logits, model_.output_bias);
    }
    if (p.logit_scale != 1) {
        logits = ggml_scale(ctx, logits, p.logit_scale);
    }
    if (p.soft_cap > 0) {
        logits = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, logits, 1 / p.soft_cap)), p.soft_cap);
    }

    const int64_t n_logits = logits->ne[0];
    const int64_t k        = std::min<int64_t>(p.version == 2 ? p.top_k : kCandidatesV1, n_logits);

    ggml_tensor * best = ggml_top_k(ctx, logits, static_cast<int>(k));                                 // [k, width]
    unary_             = ggml_get_rows(ctx, ggml_reshape_3d(ctx, logits, 1, n_logits, width_), best);  // [1, k, width]
    candidates_        = best;
    if (model_.draft_ids) {
        candidates_ = ggml_get_rows(ctx, model_.draft_ids, ggml_reshape_1d(ctx, best, k * width_));
    }
    ggml_tensor * ids = ggml_reshape_1d(ctx, candidates_, k * width_);  // [k * width]
    ggml_set_output(candidates_);
    ggml_set_output(unary_);
    ggml_build_forward_expand(graph_, candidates_);
    ggml_build_forward_expand(graph_, unary_);
    if (p.version != 2) {
        return;
    }

    // score(a -> b at t) = unary_t(b) + < predecessor[a] * gate_t, successor[b] >. Before the first position the anchor takes
    // the place of each of the k predecessors.
    anchors_                = b.input(GGML_TYPE_I32, k);
    ggml_tensor * gate      = ggml_mul_mat(ctx, model_.weights.gate, hidden);            // [rank, width]
    ggml_tensor * successor = ggml_get_rows(ctx, model_.weights.successor, ids);         // [rank, k * width]
    successor               = ggml_reshape_3d(ctx, successor, p.rank, k, width_);        // [rank, k, width]
    ggml_tensor * previous  = ggml_get_rows(ctx, model_.weights.predecessor, anchors_);  // [rank, k]
    if (width_ > 1) {
        ggml_tensor * later = ggml_view_1d(ctx, ids, k * (width_ - 1), 0);
        previous            = ggml_concat(ctx, previous, ggml_get_rows(ctx, model_.weights.predecessor, later), 1);
    }
    previous            = ggml_reshape_3d(ctx, previous, p.rank, k, width_);                       // [rank, k, width]
    ggml_tensor * query = ggml_mul(ctx, previous, ggml_reshape_3d(ctx, gate, p.rank, 1, width_));  // [rank, k, width]
    scores_             = ggml_mul_mat(ctx, successor, query);                                     // [k, k, width]
    scores_             = ggml_add(ctx, scores_, ggml_reshape_3d(ctx, unary_, k, 1, width_));      // [k, k, width]
    ggml_set_output(scores_);
    ggml_build_forward_expand(graph_, scores_);
}

bool RoundGraph::fits(int32_t end) const {
    return std::all_of(groups_.begin(), groups_.end(), [=](const GroupInputs & inputs) {
        return inputs.group->ring.n_visible(end) == inputs.n_visible;
    });
}

void RoundGraph::set_mask(const GroupInputs & inputs, bool causal, int32_t position) {
    if (!inputs.mask[causal]) {
        return;
    }
    static const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY), seen = ggml_fp32_to_fp16(0);

    const Ring &  ring      = inputs.group->ring;
    const int32_t n         = width_ + 1;
    const auto    n_visible = static_cast<size_t>(inputs.n_visible);
    mask_.assign(n_visible * static_cast<size_t>(n), hidden);
    for (int32_t i = 0; i < n; ++i) {
        // Visible are the positions first .. last; the block's own lie in the ring like any other for now.
        const int32_t window = inputs.group->sliding ? model_.params.window : ring.n_cells() + n;
        const int32_t first  = std::max(ring.begin(), position + i - window + 1);
        const int32_t last   = std::min(position + n - 1, causal ? position + i : position + i + window - 1);
        ggml_fp16_t * row    = mask_.data() + static_cast<size_t>(i) * n_visible;
        for (int32_t at = first; at <= last;) {  // two runs at most: the ring wraps once
            const int32_t cell = ring.cell(at);
            const int32_t run  = std::min(last - at + 1, ring.n_cells() - cell);
            std::fill(row + cell, row + cell + run, seen);
            at += run;
        }
    }
    ggml_backend_tensor_set(inputs.mask[causal], mask_.data(), 0, mask_.size() * sizeof(ggml_fp16_t));
}

void RoundGraph::run(const float * pending, int32_t n_pending, const float * embeddings, int32_t anchor,
                     int32_t position, Lattice & lattice) {
    const int32_t n = width_ + 1;
    injection_.set(pending, n_pending, position - n_pending);
    ggml_backend_tensor_set(embeddings_, embeddings, 0, ggml_nbytes(embeddings_));
    set_positions(positions_, model_.params, position, n);
    if (anchors_) {
        const std::vector<int32_t> anchors(static_cast<size_t>(anchors_->ne[0]), anchor);
        ggml_backend_tensor_set(anchors_, anchors.data(), 0, ggml_nbytes(anchors_));
    }
    model_.cache.lend(n);
    for (const GroupInputs & inputs : groups_) {
        set_cells(inputs, position, n);
        set_mask(inputs, false, position);
        set_mask(inputs, true, position);
    }
    Graph::run(n);
    read(lattice);
}

void RoundGraph::read(Lattice & lattice) const {
    const auto k     = static_cast<size_t>(unary_->ne[1]);
    const auto width = static_cast<size_t>(width_);
    lattice.n        = width_;
    lattice.k        = static_cast<int32_t>(k);
    lattice.candidates.resize(width * k);
    lattice.unary.resize(width * k);
    lattice.scores.resize(width * k * k);
    ggml_backend_tensor_get(candidates_, lattice.candidates.data(), 0, ggml_nbytes(candidates_));
    ggml_backend_tensor_get(unary_, lattice.unary.data(), 0, ggml_nbytes(unary_));
    if (scores_) {
        ggml_backend_tensor_get(scores_, lattice.scores.data(), 0, ggml_nbytes(scores_));
    } else {  // DFlash 1 does not look at the predecessor
        for (size_t row = 0; row < width * k; ++row) {
            std::copy_n(lattice.unary.begin() + static_cast<ptrdiff_t>(row / k * k), k,
                        lattice.scores.begin() + static_cast<ptrdiff_t>(row * k));
        }
    }
    // A head whose numbers went wrong would otherwise just be slow: no draft of it is ever accepted.
    if (!std::all_of(lattice.scores.begin(), lattice.scores.end(), [](float score) { return std::isfinite(score); })) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "the head computed scores that are not finite numbers; its weights are damaged or passed the range of "
             "their type; fetch or convert it again, or generate without drafting");
    }
}

}  // namespace pd2
