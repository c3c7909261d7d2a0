#include "products_kernel.h"

#ifdef PD2_X86_PRODUCTS

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

namespace pd2 {
namespace {

// Bytes are widened to 16 bits once, weights for all rows and rows for all weights: a lane of 32 bits then holds the same four
// products as after a byte-wise multiplication, which has to take signs apart for every pair anew.
PD2_AVX2_INLINE __m256i even_bytes(__m256i x) {
    return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
}
PD2_AVX2_INLINE __m256i odd_bytes(__m256i x) {
    return _mm256_srai_epi16(x, 8);
}
PD2_AVX2_INLINE __m256i load(const block_q8_0 & block) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.qs));
}

// Of a panel of N rows: a block of each.
template <int N>
struct PanelBlock {
    __m256i even[N], odd[N];
    float   scales[8];
};

template <int N>
PD2_AVX2 void prepare_n(const block_q8_0 * rows, int64_t stride, int64_t k, void * panel) {
    auto * out = static_cast<PanelBlock<N> *>(panel);
    for (int row = 0; row < N; ++row) {
        for (int64_t i = 0; i < k; ++i) {
            const block_q8_0 & block = rows[row * stride + i];
            const __m256i      x     = load(block);
            out[i].even[row]         = even_bytes(x);
            out[i].odd[row]          = odd_bytes(x);
            out[i].scales[row]       = _cvtsh_ss(block.d);
        }
    }
}

// A weight row by N rows. Every sum is ggml's own: eight lanes of four products each, a multiplication and an addition a block.
// One weight row at a time: of four at once, weights that come from memory take 1.5 times as long.
template <int N>
PD2_AVX2_INLINE void tile(const block_q8_0 * weights, const PanelBlock<N> * rows, int64_t k, float * c, int64_t ldc) {
    __m256 sums[N];
    PD2_UNROLL
    for (int j = 0; j < N; ++j) {
        sums[j] = _mm256_setzero_ps();
    }
    for (const auto * end = weights + k; weights != end; ++weights, ++rows) {
        const __m256i even  = even_bytes(load(*weights));
        const __m256i odd   = odd_bytes(load(*weights));
        const __m256  scale = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(weights->d)));
        PD2_UNROLL
        for (int j = 0; j < N; ++j) {
            const __m256i dots =
                _mm256_add_epi32(_mm256_madd_epi16(even, rows->even[j]), _mm256_madd_epi16(odd, rows->odd[j]));
            const __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(&rows->scales[j]));
            sums[j]           = _mm256_fmadd_ps(both, _mm256_cvtepi32_ps(dots), sums[j]);
        }
    }
    float totals[N];
    sum_lanes_of<N>(sums, totals);
    PD2_UNROLL
    for (int j = 0; j < N; ++j) {
        c[j * ldc] = totals[j];
    }
}

template <int N>
PD2_AVX2 void multiply_n(const block_q8_0 * weights, int64_t stride, int64_t m, const void * panel, int64_t k,
                         float * c, int64_t ldc) {
    for (int64_t i = 0; i < m; ++i) {
        tile<N>(weights + i * stride, static_cast<const PanelBlock<N> *>(panel), k, c + i, ldc);
    }
}

void prepare(const void * rows, int64_t stride, int n, int64_t k, void * panel) {
    using Prepare                        = void (*)(const block_q8_0 *, int64_t, int64_t, void *);
    constexpr Prepare by_rows[most_rows] = {prepare_n<1>, prepare_n<2>, prepare_n<3>, prepare_n<4>,
                                            prepare_n<5>, prepare_n<6>, prepare_n<7>, prepare_n<8>};
    by_rows[n - 1](static_cast<const block_q8_0 *>(rows), stride, k, panel);
}

void multiply(const void * weights, int64_t stride, int64_t m, const void * panel, int n, int64_t k, float * c,
              int64_t ldc) {
    using Multiply = void (*)(const block_q8_0 *, int64_t, int64_t, const void *, int64_t, float *, int64_t);
    constexpr Multiply by_rows[most_rows] = {multiply_n<1>, multiply_n<2>, multiply_n<3>, multiply_n<4>,
                                             multiply_n<5>, multiply_n<6>, multiply_n<7>, multiply_n<8>};
    by_rows[n - 1](static_cast<const block_q8_0 *>(weights), stride, m, panel, k, c, ldc);
}

}  // namespace

const ProductKernel q8_0_product = {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, sizeof(PanelBlock<8>), prepare, multiply};

}  // namespace pd2

#endif
