// Products of quantised weights and a few rows on x86-64, each row with the bits that ggml gives it alone.
#pragma once

#include <cstdint>

#include "ggml.h"

namespace pd2 {

// This thread's share of c = b * a^T, as llamafile_sgemm has it: m weight rows `a` of k blocks and n rows `b`, `lda` and `ldb` blocks
// apart, into c[row * ldc + weight row]. False, and nothing written: these types, or this processor, are left to others.
bool multiply_rows(int ith, int nth, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b,
                   int64_t ldb, float * c, int64_t ldc, ggml_type type_a, ggml_type type_b);

}  // namespace pd2
