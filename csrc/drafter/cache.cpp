#include "cache.h"

#include <algorithm>

#include "error.h"

namespace pd2 {
namespace {

constexpr int32_t kCellStep = 64;

int32_t round_up(int32_t value, int32_t step) {
    return (value + step - 1) / step * step;
}

}  // namespace

void Ring::truncate(int32_t position) {
    for (int32_t & held : position_) {
        held = held >= position ? -1 : held;
    }
}

int32_t Ring::missing_from(int32_t first, int32_t end) const {
    while (first < end && position_[cell(first)] == first) {
        ++first;
    }
    return first;
}

int32_t Ring::n_visible(int32_t end) const {
    // Doubling keeps the number of rebuilds logarithmic in the context.
    int32_t n = kCellStep;
    while (n < end && n < n_cells()) {
        n *= 2;
    }
    return std::min(n, n_cells());
}

Cache::Cache(const HeadParams & params, int32_t context_size, ggml_type type, ggml_backend_dev_t device)
    // A window longer than the context never slides; a block writes its own rows behind the context's.
    : sliding_(params.n_sliding() > 0 ? round_up(std::min(params.window, context_size) + params.block_size, kCellStep)
                                      : 0),
      full_(params.n_sliding() < params.n_layer ? round_up(context_size + params.block_size, kCellStep) : 0),
      window_(params.window) {
    ggml_init_params init = {2 * params.n_layer * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/true};
    context_.reset(ggml_init(init));
    const int64_t width = static_cast<int64_t>(params.n_head_kv) * params.head_dim;
    for (int32_t i = 0; i < params.n_layer; ++i) {
        LayerCache layer;
        layer.ring = params.sliding[i] ? &sliding_ : &full_;
        layer.k    = ggml_new_tensor_2d(context_.get(), type, width, layer.ring->n_cells());
        layer.v    = ggml_new_tensor_2d(context_.get(), type, layer.ring->n_cells(), width);
        layers_.push_back(layer);
    }
    // Linux grants any amount of main memory and ends the process when it is used.
    const bool on_cpu = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    size_t     free = 0, total = 0, bytes = 0;
    ggml_backend_dev_memory(device, &free, &total);
    for (const LayerCache & layer : layers_) {
        bytes += ggml_nbytes(layer.k) + ggml_nbytes(layer.v);
    }
    if (on_cpu && total > 0 && bytes > total) {
        fail(PD2_ERROR_MEMORY,
             "the drafter's K/V cache takes %.1f GB, this machine has %.1f GB of memory; use a smaller "
             "context_size",
             static_cast<double>(bytes) / 1e9, static_cast<double>(total) / 1e9);
    }
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(device)));
    if (!buffer_) {
        fail(PD2_ERROR_MEMORY, "no memory on %s for the drafter's K/V cache; use a smaller context_size",
             ggml_backend_dev_name(device));
    }
    // Masked cells still take part in the product with weight zero: they must not hold NaN.
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

int32_t Cache::missing_from(int32_t position) const {
    int32_t missing = position;
    if (has_sliding()) {
        missing = std::min(missing, sliding_.missing_from(std::max(0, position - window_ + 1), position));
    }
    if (has_full()) {
        missing = std::min(missing, full_.missing_from(0, position));
    }
    return missing;
}

void Cache::extend(int32_t position, int32_t n) {
    for (int32_t i = position; i < position + n; ++i) {
        if (has_sliding()) {
            sliding_.put(i);
        }
        if (has_full()) {
            full_.put(i);
        }
    }
    end_ = position + n;
}

void Cache::truncate(int32_t position) {
    if (position < end_) {
        sliding_.truncate(position);
        full_.truncate(position);
        end_ = position;
    }
}

}  // namespace pd2
