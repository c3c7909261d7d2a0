// What products.cpp and the files of its kernels share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define PD2_X86_PRODUCTS
#include <immintrin.h>
// A file compiled for AVX2 as a whole could leak such code, through inline functions of the library, to processors without it.
#define PD2_AVX2 __attribute__((target("avx2,fma,f16c")))
#define PD2_AVX2_INLINE PD2_AVX2 __attribute__((always_inline)) inline
#define PD2_UNROLL _Pragma("GCC unroll 16")
#endif

namespace pd2 {

constexpr int most_rows = 8;  // accumulators that fit AVX2's 16 registers beside weights and a product

// One type of weights. A panel is up to most_rows rows, laid out anew so that no weight row has to do it again.
struct ProductKernel {
    ggml_type weights;
    ggml_type rows;
    size_t    panel_bytes;  // of one block of every row
    // `n` rows of `k` blocks, `stride` blocks apart, into a panel aligned to 32 bytes.
    void (*prepare)(const void * rows, int64_t stride, int n, int64_t k, void * panel);
    // c[row * ldc + i] of `m` weight rows, `stride` blocks apart.
    void (*multiply)(const void * weights, int64_t stride, int64_t m, const void * panel, int n, int64_t k, float * c,
                     int64_t ldc);
};

#ifdef PD2_X86_PRODUCTS
extern const ProductKernel q4_k_product, q5_k_product, q6_k_product, q8_0_product;

// The order in which ggml's dot products add up eight lanes.
PD2_AVX2_INLINE float sum_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum        = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#endif

}  // namespace pd2
