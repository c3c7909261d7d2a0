#include "cache.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace pd2 {
namespace {

constexpr int32_t kCellStep    = 64;
constexpr int32_t kGpuCellStep = 256;  // attention kernels of GPUs want whole multiples

int32_t round_up(int32_t value, int32_t step) {
    return (value + step - 1) / step * step;
}

// Vulkan's kernels for attention and products end the process where a layer's part of a row begins between two steps of the device's
// alignment.
void check_alignment(const CacheGroup & group, ggml_backend_dev_t device) {
    ggml_backend_reg_t back_end = ggml_backend_dev_backend_reg(device);
    if (!back_end || std::strcmp(ggml_backend_reg_name(back_end), "Vulkan") != 0) {
        return;
    }
    const size_t layers = group.layers.size();
    const size_t bytes  = group.k->nb[1] / layers;
    const size_t step   = ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(device));
    if (layers > 1 && bytes % step != 0) {
        fail(
            PD2_ERROR_BACKEND,
            "%s cannot run this head: it reads memory from multiples of %zu bytes on, and K of a layer takes %zu; give "
            "draft_device=\"cpu\"",
            ggml_backend_dev_name(device), step, bytes);
    }
}

}  // namespace

void Ring::extend(int32_t position, int32_t n) {
    if (position != end_) {  // nothing before it is here, or nothing next to it
        begin_ = position;
    }
    end_   = position + n;
    begin_ = std::max(begin_, end_ - n_cells_);
}

void Ring::truncate(int32_t position) {
    end_   = std::min(end_, position);
    begin_ = std::min(begin_, end_);
}

int32_t Ring::missing_from(int32_t first, int32_t end) const {
    return first < begin_ ? std::min(first, end) : std::min(std::max(first, end_), end);
}

int32_t Ring::n_visible(int32_t end) const {
    int32_t n = kGpuCellStep;
    while (n < end && n < n_cells_) {
        n *= 2;
    }
    return std::min(n, n_cells_);
}

Cache::Cache(const HeadParams & params, int32_t context_size, ggml_type type, ggml_backend_dev_t device)
    : window_(params.window) {
    const bool    on_cpu = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const int32_t step   = on_cpu ? kCellStep : kGpuCellStep;
    for (const bool sliding : {true, false}) {
        // A window longer than the context never slides; a block writes its own rows behind the context's.
        const int32_t seen  = sliding ? std::min(params.window, context_size) : context_size;
        CacheGroup    group = {sliding, Ring(round_up(seen + params.block_size, step)), {}};
        for (int32_t layer = 0; layer < params.n_layer; ++layer) {
            if (params.sliding[static_cast<size_t>(layer)] == sliding) {
                group.layers.push_back(layer);
            }
        }
        if (!group.layers.empty()) {
            groups_.push_back(std::move(group));
        }
    }
    context_ = new_context(2 * groups_.size());
    for (CacheGroup & group : groups_) {
        const int64_t width = static_cast<int64_t>(group.layers.size()) * params.n_head_kv * params.head_dim;
        group.k             = ggml_new_tensor_2d(context_.get(), type, width, group.ring.n_cells() + 1);
        group.v             = ggml_new_tensor_2d(context_.get(), type, width, group.ring.n_cells() + 1);
        check_alignment(group, device);
    }
    // Linux grants any amount of main memory and ends the process when it is used.
    size_t free = 0, total = 0, bytes = 0;
    ggml_backend_dev_memory(device, &free, &total);
    for (const CacheGroup & group : groups_) {
        bytes += ggml_nbytes(group.k) + ggml_nbytes(group.v);
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

uint64_t Cache::bytes_per_token() const {
    const CacheGroup & last = groups_.back();  // the one without a window, where there is one
    return last.sliding ? 0 : last.k->nb[1] + last.v->nb[1];
}

int32_t Cache::first_visible(int32_t position) const {
    int32_t first = position;
    for (const CacheGroup & group : groups_) {
        first = std::min(first, group.sliding ? std::max(0, position - window_ + 1) : 0);
    }
    return first;
}

int32_t Cache::missing_from(int32_t position) const {
    int32_t missing = position;
    for (const CacheGroup & group : groups_) {
        const int32_t first = group.sliding ? std::max(0, position - window_ + 1) : 0;
        missing             = std::min(missing, group.ring.missing_from(first, position));
    }
    return missing;
}

void Cache::extend(int32_t position, int32_t n) {
    for (CacheGroup & group : groups_) {
        group.ring.extend(position, n);
    }
    end_ = position + n;
}

void Cache::lend(int32_t n) {
    for (CacheGroup & group : groups_) {
        group.ring.lend(n);
    }
}

void Cache::truncate(int32_t position) {
    for (CacheGroup & group : groups_) {
        group.ring.truncate(position);
    }
    end_ = std::min(end_, position);
}

}  // namespace pd2
