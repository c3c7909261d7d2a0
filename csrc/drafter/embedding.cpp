#include "embedding.h"

#include <algorithm>
#include <cstring>

namespace pd2 {

Embedding::Embedding(ggml_tensor * table, float scale, int32_t mask_token)
    : table_(table), scale_(scale), mask_(static_cast<size_t>(table->ne[0])) {
    read(mask_token, mask_.data());
}

const float * Embedding::block(int32_t anchor, int32_t width) {
    const size_t n_embd = mask_.size();
    while (rows_.size() < (static_cast<size_t>(width) + 1) * n_embd) {
        rows_.insert(rows_.end(), mask_.begin(), mask_.end());
    }
    read(anchor, rows_.data());
    return rows_.data();
}

void Embedding::read(int32_t token, float * row) {
    const size_t bytes = ggml_row_size(table_->type, table_->ne[0]);
    raw_.resize(bytes);
    ggml_backend_tensor_get(table_, raw_.data(), static_cast<size_t>(token) * table_->nb[1], bytes);
    if (table_->type == GGML_TYPE_F32) {
        std::memcpy(row, raw_.data(), bytes);
    } else {
        ggml_get_type_traits(table_->type)->to_float(raw_.data(), row, table_->ne[0]);
    }
    if (scale_ != 1) {
        std::transform(row, row + table_->ne[0], row, [this](float value) { return value * scale_; });
    }
}

}  // namespace pd2
