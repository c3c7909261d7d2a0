// The drafter's K/V cache. Layers with a window keep a ring just large enough for the window and one block; layers without
// keep the whole context. Which position lies in which cell is known on the host alone.
#pragma once

#include <vector>

#include "drafter.h"
#include "weights.h"

namespace pd2 {

// The cells of one kind of layer: committed positions begin .. end - 1, each in cell position % n_cells.
class Ring {
  public:
    explicit Ring(int32_t n_cells) : n_cells_(n_cells) {}

    int32_t n_cells() const { return n_cells_; }
    int32_t cell(int32_t position) const { return position % n_cells_; }
    int32_t trash() const { return n_cells_; }  // the cell behind the ring, for rows that nobody shall see
    int32_t begin() const { return begin_; }
    int32_t end() const { return end_; }

    // Positions position .. position + n - 1 are now here; n <= n_cells.
    void extend(int32_t position, int32_t n);

    // A block wrote its n rows behind the end, where it no longer sees what was there.
    void lend(int32_t n) { begin_ = std::max(begin_, std::min(end_, end_ + n - n_cells_)); }

    void truncate(int32_t position);  // forget positions >= position

    // The first of the positions [first, end) that is not here; end when all are.
    int32_t missing_from(int32_t first, int32_t end) const;

    // Cells a block that ends before `end` can see: a prefix of the ring until it wraps. Doubles, so that the number of
    // graphs is logarithmic in the context.
    int32_t n_visible(int32_t end) const;

  private:
    int32_t n_cells_;
    int32_t begin_ = 0;
    int32_t end_   = 0;
};

// All layers of one kind: their ring, and K and V of each cell, layer beside layer, so that one operation writes them all.
struct CacheGroup {
    bool                 sliding;
    Ring                 ring;
    std::vector<int32_t> layers;       // of the head, in the order they lie in a cell
    ggml_tensor *        k = nullptr;  // [n_layers * n_head_kv * head_dim, n_cells + 1], the last cell is the trash
    ggml_tensor *        v = nullptr;  // [n_layers * n_head_kv * head_dim, n_cells + 1]
};

class Cache {
  public:
    Cache(const HeadParams & params, int32_t context_size, ggml_type type, ggml_backend_dev_t device);
    Cache(const Cache &)             = delete;  // graphs point at the groups
    Cache & operator=(const Cache &) = delete;

    std::vector<CacheGroup> & groups() { return groups_; }
    uint64_t                  bytes() const { return ggml_backend_buffer_get_size(buffer_.get()); }

    uint64_t bytes_per_token() const;  // of context, by layers without a window

    int32_t end() const { return end_; }
    int32_t first_visible(int32_t position) const;  // see Drafter
    int32_t missing_from(int32_t position) const;   // see Drafter
    void    extend(int32_t position, int32_t n);    // positions .. + n are now committed
    void    lend(int32_t n);                        // see Ring
    void    truncate(int32_t position);

  private:
    std::vector<CacheGroup> groups_;  // one or two
    ContextPtr              context_;
    BufferPtr               buffer_;
    int32_t                 window_;
    int32_t                 end_ = 0;
};

}  // namespace pd2
