#include "graph.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "error.h"
#include "layers.h"

namespace pd2 {
namespace {

// Nodes one layer makes at most: each convolution takes about ten a tap, the rest is below fifty.
size_t node_budget(const HeadParams & params) {
    return 256 + static_cast<size_t>(params.n_layer) * (96 + 48 * static_cast<size_t>(params.conv_kernel));
}

void set_positions(ggml_tensor * tensor, const HeadParams & params, int32_t position, int32_t n) {
    // M-RoPE takes four numbers a row: time, height, width, and one that text leaves 0.
    std::vector<int32_t> values(params.mrope ? 4 * n : n, 0);
    for (size_t i = 0; i < values.size(); ++i) {
        const int32_t axis = static_cast<int32_t>(i) / n;
        values[i]          = axis < 3 ? position + static_cast<int32_t>(i) % n : 0;
    }
    ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(int32_t));
}

void set_cells(const RingInputs & inputs, int32_t position, int32_t n) {
    std::vector<int64_t> cells(n);
    for (int32_t i = 0; i < n; ++i) {
        cells[i] = inputs.ring->cell(position + i);
    }
    ggml_backend_tensor_set(inputs.k_cells, cells.data(), 0, cells.size() * sizeof(int64_t));

    const int64_t        width = inputs.v_cells->ne[0] / n;
    std::vector<int64_t> items(n * width);
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t d = 0; d < width; ++d) {
            items[i * width + d] = d * inputs.ring->n_cells() + cells[i];
        }
    }
    ggml_backend_tensor_set(inputs.v_cells, items.data(), 0, items.size() * sizeof(int64_t));
}

}  // namespace

Graph::Graph(size_t n_nodes) {
    const size_t     size   = n_nodes * ggml_tensor_overhead() * 2 + ggml_graph_overhead_custom(n_nodes, false);
    ggml_init_params params = {size, nullptr, /*.no_alloc =*/true};
    context_.reset(ggml_init(params));
    if (!context_) {
        fail(PD2_ERROR_MEMORY, "no memory to build the drafter's graph; free some and try again");
    }
    graph_ = ggml_new_graph_custom(context_.get(), n_nodes, /*grads =*/false);
}

void Graph::allocate(const std::vector<ggml_backend_t> & backends) {
    backends_ = backends;
    sched_.reset(ggml_backend_sched_new(backends_.data(), nullptr, static_cast<int>(backends_.size()),
                                        static_cast<size_t>(ggml_graph_size(graph_)), /*parallel =*/false,
                                        /*op_offload =*/false));
    if (!sched_ || !ggml_backend_sched_alloc_graph(sched_.get(), graph_)) {
        fail(PD2_ERROR_MEMORY, "no memory for the drafter's computation; use a smaller batch_size or context_size");
    }
}

void Graph::compute() {
    const ggml_status status = ggml_backend_sched_graph_compute(sched_.get(), graph_);
    if (status != GGML_STATUS_SUCCESS) {
        fail(PD2_ERROR_NATIVE, "the drafter's computation failed (ggml: %s); report this with the log",
             ggml_status_to_string(status));
    }
}

uint64_t Graph::bytes() const {
    uint64_t bytes = 0;
    for (ggml_backend_t backend : backends_) {
        bytes += ggml_backend_sched_get_buffer_size(sched_.get(), backend);
    }
    return bytes;
}

InjectGraph::InjectGraph(const Model & model, int32_t n) : Graph(node_budget(model.params)), model_(model), n_(n) {
    Builder            b(model, context_.get(), graph_);
    const HeadParams & p = model.params;

    features_  = b.input(GGML_TYPE_F32, p.n_feature, n);  // [n_feature, n]
    positions_ = b.input(GGML_TYPE_I32, p.mrope ? 4LL * n : n);
    if (model.cache.has_sliding()) {
        sliding_ = b.ring_inputs(model.cache.sliding(), true, n);
    }
    if (model.cache.has_full()) {
        full_ = b.ring_inputs(model.cache.full(), false, n);
    }
    ggml_tensor * context = b.norm(b.linear(model.weights.fc, features_), model.weights.fc_norm);  // [n_embd, n]
    for (int32_t i = 0; i < p.n_layer; ++i) {
        b.write_kv(i, context, positions_, p.sliding[i] ? sliding_ : full_);
    }
}

void InjectGraph::run(const float * features, int32_t position) {
    ggml_backend_tensor_set(features_, features, 0, ggml_nbytes(features_));
    set_positions(positions_, model_.params, position, n_);
    for (const RingInputs * inputs : {&sliding_, &full_}) {
        if (inputs->ring) {
            set_cells(*inputs, position, n_);
        }
    }
    compute();
}

BlockGraph::BlockGraph(const Model & model, int32_t width, int32_t end)
    : Graph(node_budget(model.params)), model_(model), width_(width) {
    Builder            b(model, context_.get(), graph_);
    const HeadParams & p = model.params;
    const int32_t      n = width + 1;

    tokens_    = b.input(GGML_TYPE_I32, n);
    positions_ = b.input(GGML_TYPE_I32, p.mrope ? 4LL * n : n);
    if (model.cache.has_sliding()) {
        sliding_ = b.ring_inputs(model.cache.sliding(), true, n);
        b.add_masks(sliding_, n, end);
    }
    if (model.cache.has_full()) {
        full_ = b.ring_inputs(model.cache.full(), false, n);
        b.add_masks(full_, n, end);
    }

    ggml_tensor * h = ggml_get_rows(b.ctx, model.token_embd, tokens_);  // [n_embd, n]
    if (p.embedding_scale != 1) {
        h = ggml_scale(b.ctx, h, p.embedding_scale);
    }
    for (int32_t i = 0; i < p.n_layer; ++i) {
        const Layer & layer    = model.weights.layers[i];
        auto          sublayer = [&](ggml_tensor * norm, const Convolution & conv, auto && inner) {
            ggml_tensor * x = b.norm(h, norm);  // [n_embd, n]
            if (!conv.base) {
                h = ggml_add(b.ctx, h, inner(x));
                return;
            }
            ggml_tensor * dynamic = b.linear(conv.projection, x);  // [2 * kernel * groups, n]
            x                     = b.convolve(inner(b.convolve(x, dynamic, conv, 0)), dynamic, conv, 1);
            h                     = ggml_add(b.ctx, h, x);
        };
        sublayer(layer.attn_norm, layer.attn_conv,
                 [&](ggml_tensor * x) { return b.attention(i, x, positions_, p.sliding[i] ? sliding_ : full_); });
        sublayer(layer.ffn_norm, layer.ffn_conv, [&](ggml_tensor * x) { return b.feed_forward(layer, x); });
    }
    // The anchor's own row has done its work: only the predicted rows go on.
    h = ggml_view_2d(b.ctx, h, p.n_embd, width, h->nb[1], h->nb[1]);  // [n_embd, width]
    build_lattice(b.norm(h, model.weights.output_norm));
}

void BlockGraph::build_lattice(ggml_tensor * hidden) {
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
    if (model_.weights.draft_ids) {
        candidates_ = ggml_get_rows(ctx, model_.weights.draft_ids, ggml_reshape_1d(ctx, best, k * width_));
    }
    ggml_tensor * ids = ggml_reshape_1d(ctx, candidates_, k * width_);  // [k * width]
    ggml_set_output(candidates_);
    ggml_set_output(unary_);
    ggml_build_forward_expand(graph_, candidates_);
    ggml_build_forward_expand(graph_, unary_);
    if (p.version != 2) {
        return;
    }

    // score(a -> b at t) = unary_t(b) + < predecessor[a] * gate_t, successor[b] >
    ggml_tensor * gate      = b.linear(model_.weights.gate, hidden);               // [rank, width]
    ggml_tensor * successor = ggml_get_rows(ctx, model_.weights.successor, ids);   // [rank, k * width]
    successor               = ggml_reshape_3d(ctx, successor, p.rank, k, width_);  // [rank, k, width]
    ggml_tensor * unary     = ggml_reshape_3d(ctx, unary_, k, 1, width_);          // [k, 1, width]

    ggml_tensor * anchor =
        ggml_get_rows(ctx, model_.weights.predecessor, ggml_view_1d(ctx, tokens_, 1, 0));             // [rank, 1]
    ggml_tensor * query = ggml_mul(ctx, anchor, ggml_view_2d(ctx, gate, p.rank, 1, gate->nb[1], 0));  // [rank, 1]
    first_ = ggml_mul_mat(ctx, ggml_view_2d(ctx, successor, p.rank, k, successor->nb[1], 0), query);  // [k, 1]
    first_ = ggml_add(ctx, first_, ggml_view_2d(ctx, unary, k, 1, unary->nb[2], 0));                  // [k, 1]
    ggml_set_output(first_);
    ggml_build_forward_expand(graph_, first_);
    if (width_ == 1) {
        return;
    }

    const int64_t later    = width_ - 1;
    ggml_tensor * previous = ggml_get_rows(ctx, model_.weights.predecessor, ggml_view_1d(ctx, ids, k * later, 0));
    previous               = ggml_reshape_3d(ctx, previous, p.rank, k, later);  // [rank, k, width - 1]
    query   = ggml_mul(ctx, previous, ggml_view_3d(ctx, gate, p.rank, 1, later, gate->nb[1], gate->nb[1], gate->nb[1]));
    scores_ = ggml_mul_mat(
        ctx, ggml_view_3d(ctx, successor, p.rank, k, later, successor->nb[1], successor->nb[2], successor->nb[2]),
        query);  // [k, k, width - 1]
    scores_ = ggml_add(ctx, scores_, ggml_view_3d(ctx, unary, k, 1, later, unary->nb[1], unary->nb[2], unary->nb[2]));
    ggml_set_output(scores_);
    ggml_build_forward_expand(graph_, scores_);
}

bool BlockGraph::fits(int32_t end) const {
    return (!sliding_.ring || sliding_.ring->n_visible(end) == sliding_.n_visible) &&
           (!full_.ring || full_.ring->n_visible(end) == full_.n_visible);
}

void BlockGraph::set_mask(const RingInputs & inputs, bool causal, int32_t position) {
    if (!inputs.mask[causal]) {
        return;
    }
    const int32_t      n = width_ + 1;
    std::vector<float> mask(static_cast<size_t>(inputs.n_visible) * n, -INFINITY);
    for (int32_t cell = 0; cell < inputs.n_visible; ++cell) {
        const int32_t key = inputs.ring->position(cell);
        for (int32_t i = 0; key >= 0 && i < n; ++i) {
            const int32_t distance = position + i - key;
            const bool    inside   = !inputs.sliding || std::abs(distance) < model_.params.window;
            if (inside && (!causal || distance >= 0)) {
                mask[static_cast<size_t>(i) * inputs.n_visible + cell] = 0;
            }
        }
    }
    ggml_backend_tensor_set(inputs.mask[causal], mask.data(), 0, mask.size() * sizeof(float));
}

void BlockGraph::run(int32_t anchor, int32_t position, Lattice & lattice) {
    const HeadParams &   p = model_.params;
    const int32_t        n = width_ + 1;
    std::vector<int32_t> tokens(n, p.mask_token);
    tokens[0] = anchor;
    ggml_backend_tensor_set(tokens_, tokens.data(), 0, tokens.size() * sizeof(int32_t));
    set_positions(positions_, p, position, n);

    // For the time of this computation the block's rows are in the cache like any other.
    for (const RingInputs * inputs : {&sliding_, &full_}) {
        if (!inputs->ring) {
            continue;
        }
        for (int32_t i = 0; i < n; ++i) {
            inputs->ring->put(position + i);
        }
        set_cells(*inputs, position, n);
        set_mask(*inputs, false, position);
        set_mask(*inputs, true, position);
        for (int32_t i = 0; i < n; ++i) {
            inputs->ring->drop(position + i);
        }
    }
    compute();

    const auto k = static_cast<int32_t>(unary_->ne[1]);
    lattice.n    = width_;
    lattice.k    = k;
    lattice.candidates.resize(static_cast<size_t>(width_) * k);
    lattice.unary.resize(static_cast<size_t>(width_) * k);
    lattice.scores.resize(static_cast<size_t>(width_) * k * k);
    ggml_backend_tensor_get(candidates_, lattice.candidates.data(), 0, ggml_nbytes(candidates_));
    ggml_backend_tensor_get(unary_, lattice.unary.data(), 0, ggml_nbytes(unary_));
    if (scores_) {
        ggml_backend_tensor_get(scores_, lattice.scores.data() + k * k, 0, ggml_nbytes(scores_));
    }
    // One row stands for all predecessors where there is just one: the anchor, or in DFlash 1 none at all.
    std::vector<float> first(lattice.unary.begin(), lattice.unary.begin() + k);
    if (first_) {
        ggml_backend_tensor_get(first_, first.data(), 0, ggml_nbytes(first_));
    }
    for (int32_t t = 0; t < (first_ ? 1 : width_); ++t) {
        const float * row = first_ ? first.data() : lattice.unary.data() + static_cast<size_t>(t) * k;
        for (int32_t a = 0; a < k; ++a) {
            std::copy(row, row + k, lattice.scores.begin() + (static_cast<size_t>(t) * k + a) * k);
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
