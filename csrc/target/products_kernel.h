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

void * product_memory(size_t bytes);  // of this thread, aligned to 64 bytes; its content is lost at the next call

#ifdef PD2_X86_PRODUCTS
bool products_run_here();  // this processor has the instructions, and the user has not refused them

extern const ProductKernel q4_k_product, q5_k_product, q6_k_product, q5_0_product, q8_0_product;

// Lanes are added up in ggml's order: i and i + 4, then i and i + 2, then the last two.
PD2_AVX2_INLINE float sum_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum        = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

PD2_AVX2_INLINE __m256 sum_halves(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// Of four at once, which takes a third of the instructions.
PD2_AVX2_INLINE __m128 sum_lanes(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256d ab = _mm256_castps_pd(sum_halves(a, b));
    const __m256d cd = _mm256_castps_pd(sum_halves(c, d));
    const __m256  pairs =
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)), _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    const __m128 ac = _mm256_castps256_ps128(pairs), bd = _mm256_extractf128_ps(pairs, 1);
    const __m128 low = _mm_unpacklo_ps(ac, bd), high = _mm_unpackhi_ps(ac, bd);
    return _mm_add_ps(_mm_movelh_ps(low, high), _mm_movehl_ps(high, low));
}

template <int N>
PD2_AVX2_INLINE void sum_lanes_of(const __m256 * sums, float * totals) {
    constexpr int fours = N / 4 * 4;
    PD2_UNROLL
    for (int j = 0; j < fours; j += 4) {
        _mm_storeu_ps(totals + j, sum_lanes(sums[j], sums[j + 1], sums[j + 2], sums[j + 3]));
    }
    PD2_UNROLL
    for (int j = fours; j < N; ++j) {
        totals[j] = sum_lanes(sums[j]);
    }
}
#endif

}  // namespace pd2
