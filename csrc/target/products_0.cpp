#include <cstring>

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
PD2_AVX2_INLINE __m256i load(const block_q5_0 & block) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i *>(block.qs));
    const __m256i low    = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(packed, 4), packed), _mm256_set1_epi8(15));
    // A byte of the fifth bits for each eight weights, and in each byte the bit of its own weight. Where it is not set, 16 is taken off.
    int32_t fifth;
    std::memcpy(&fifth, block.qh, sizeof fifth);
    const __m256i byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i bit  = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i own  = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(fifth), byte), bit);
    return _mm256_or_si256(low,
                           _mm256_and_si256(_mm256_cmpeq_epi8(own, _mm256_setzero_si256()), _mm256_set1_epi8(-16)));
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
template <typename Weights, int N>
PD2_AVX2_INLINE void tile(const Weights * weights, const PanelBlock<N> * rows, int64_t k, float * c, int64_t ldc) {
    __m256 sums[N];
    PD2_UNROLL
    for (int j = 0; j < N; ++j) {
        sums[j] = _mm256_setzero_ps();
    }
    for (const auto * end = weights + k; weights != end; ++weights, ++rows) {
        const __m256i bytes = load(*weights);
        const __m256i even  = even_bytes(bytes);
        const __m256i odd   = odd_bytes(bytes);
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

template <typename Weights, int N>
PD2_AVX2 void multiply_n(const Weights * weights, int64_t stride, int64_t m, const void * panel, int64_t k, float * c,
                         int64_t ldc) {
    for (int64_t i = 0; i < m; ++i) {
        tile<Weights, N>(weights + i * stride, static_cast<const PanelBlock<N> *>(panel), k, c + i, ldc);
    }
}

void prepare(const void * rows, int64_t stride, int n, int64_t k, void * panel) {
    using Prepare                        = void (*)(const block_q8_0 *, int64_t, int64_t, void *);
    constexpr Prepare by_rows[most_rows] = {prepare_n<1>, prepare_n<2>, prepare_n<3>, prepare_n<4>,
                                            prepare_n<5>, prepare_n<6>, prepare_n<7>, prepare_n<8>};
    by_rows[n - 1](static_cast<const block_q8_0 *>(rows), stride, k, panel);
}

template <typename Weights>
void multiply(const void * weights, int64_t stride, int64_t m, const void * panel, int n, int64_t k, float * c,
              int64_t ldc) {
    using Multiply = void (*)(const Weights *, int64_t, int64_t, const void *, int64_t, float *, int64_t);
    constexpr Multiply by_rows[most_rows] = {multiply_n<Weights, 1>, multiply_n<Weights, 2>, multiply_n<Weights, 3>,
                                             multiply_n<Weights, 4>, multiply_n<Weights, 5>, multiply_n<Weights, 6>,
                                             multiply_n<Weights, 7>, multiply_n<Weights, 8>};
    by_rows[n - 1](static_cast<const Weights *>(weights), stride, m, panel, k, c, ldc);
}

}  // namespace

const ProductKernel q8_0_product = {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, sizeof(PanelBlock<8>), prepare,
                                    multiply<block_q8_0>};
const ProductKernel q5_0_product = {GGML_TYPE_Q5_0, GGML_TYPE_Q8_0, sizeof(PanelBlock<8>), prepare,
                                    multiply<block_q5_0>};

}  // namespace pd2

#endif
