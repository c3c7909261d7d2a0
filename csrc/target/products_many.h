// Products of quantised weights and many rows on x86-64, for texts that are decoded side by side.
#pragma once

#include <cstdint>

#include "ggml.h"

namespace pd2 {

// As multiply_rows, up to twice as fast, and not with the bits of a row alone: a block's products are added up exactly, the blocks
// in another order. False, and nothing written: few rows, these types, or this processor.
bool multiply_many_rows(int ith, int nth, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b,
                        int64_t ldb, float * c, int64_t ldc, ggml_type type_a, ggml_type type_b);

}  // namespace pd2
