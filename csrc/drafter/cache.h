// The drafter's K/V cache. A layer with a window keeps a ring just large enough for the window and one block; a layer
// without keeps the whole context. Which position lies in which cell is known on the host alone.
#pragma once

#include <vector>

#include "drafter.h"
#include "weights.h"

namespace pd2 {

// Cells of one kind of layer (all sliding layers share one ring's layout, all full layers the other's).
class Ring {
  public:
    explicit Ring(int32_t n_cells) : position_(n_cells, -1) {}

    int32_t n_cells() const { return static_cast<int32_t>(position_.size()); }
    int32_t cell(int32_t position) const { return position % n_cells(); }
    int32_t position(int32_t cell) const { return position_[cell]; }  // -1: nothing

    void put(int32_t position) { position_[cell(position)] = position; }
    void drop(int32_t position) { position_[cell(position)] = -1; }
    void truncate(int32_t position);

    // The first of the positions [first, end) that is not here; end when all are.
    int32_t missing_from(int32_t first, int32_t end) const;

    // Cells a block that ends before `end` can see: a prefix of the ring until it wraps. Grows in steps, so that graphs
    // are rebuilt seldom.
    int32_t n_visible(int32_t end) const;

  private:
    std::vector<int32_t> position_;  // [n_cells]
};

struct LayerCache {
    ggml_tensor * k    = nullptr;  // [n_head_kv * head_dim, n_cells]
    ggml_tensor * v    = nullptr;  // [n_cells, n_head_kv * head_dim]: transposed, so that attention reads rows
    Ring *        ring = nullptr;
};

class Cache {
  public:
    Cache(const HeadParams & params, int32_t context_size, ggml_type type, ggml_backend_dev_t device);
    Cache(const Cache &)             = delete;  // layers point at the rings
    Cache & operator=(const Cache &) = delete;

    const LayerCache & layer(int32_t i) const { return layers_[i]; }
    uint64_t           bytes() const { return ggml_backend_buffer_get_size(buffer_.get()); }

    bool   has_sliding() const { return sliding_.n_cells() > 0; }
    bool   has_full() const { return full_.n_cells() > 0; }
    Ring & sliding() { return sliding_; }
    Ring & full() { return full_; }

    int32_t end() const { return end_; }
    int32_t missing_from(int32_t position) const;  // see Drafter
    void    extend(int32_t position, int32_t n);   // positions .. + n are now committed
    void    truncate(int32_t position);

  private:
    Ring                    sliding_;
    Ring                    full_;
    std::vector<LayerCache> layers_;
    ContextPtr              context_;
    BufferPtr               buffer_;
    int32_t                 window_;
    int32_t                 end_ = 0;
};

}  // namespace pd2
