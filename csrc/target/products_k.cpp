// K-quants: blocks of 256 values, of eight runs of 32 that each have a scale, or two, of their own.
#include <cstring>

#include "products_kernel.h"

#ifdef PD2_X86_PRODUCTS

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

namespace pd2 {
namespace {

constexpr int runs = 8;

// Of a panel of N rows: a block of each.
template <int N>
struct PanelBlock {
    __m256i values[runs][N];
    __m256i sums_of_16[N];
    __m128i sums_of_32[N];
    float   scales[8];
};

template <int N>
PD2_AVX2 void prepare_n(const block_q8_K * rows, int64_t stride, int64_t k, void * panel) {
    auto * out = static_cast<PanelBlock<N> *>(panel);
    for (int row = 0; row < N; ++row) {
        for (int64_t i = 0; i < k; ++i) {
            const block_q8_K & block = rows[row * stride + i];
            for (int run = 0; run < runs; ++run) {
                out[i].values[run][row] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.qs) + run);
            }
            const __m256i sums     = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.bsums));
            out[i].sums_of_16[row] = sums;
            out[i].sums_of_32[row] = _mm_hadd_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
            out[i].scales[row]     = block.d;
        }
    }
}

PD2_AVX2_INLINE __m256i load_bytes(const uint8_t * bytes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bytes));
}

PD2_AVX2_INLINE __m256i bits(__m256i x, int mask) {
    return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(mask)));
}

// Each kind of weights reads a block: `four` of its runs as unsigned bytes, and for each run its scales as 16 bits. What is left,
// an offset of all values or minima of the runs, is multiplied by the sums of a row's values.

struct Q6 {
    using Block                      = block_q6_K;
    static constexpr bool has_minima = false;

    __m128i scales;

    PD2_AVX2_INLINE explicit Q6(const Block & block)
        : scales(_mm_loadu_si128(reinterpret_cast<const __m128i *>(block.scales))) {}

    PD2_AVX2_INLINE static void four(const Block & block, int half, __m256i * values) {
        const __m256i low_0 = load_bytes(block.ql + 64 * half);
        const __m256i low_1 = load_bytes(block.ql + 64 * half + 32);
        const __m256i high  = load_bytes(block.qh + 32 * half);
        values[0]           = _mm256_or_si256(bits(low_0, 15), _mm256_slli_epi16(bits(high, 3), 4));
        values[1]           = _mm256_or_si256(bits(low_1, 15), _mm256_slli_epi16(bits(high, 12), 2));
        values[2]           = _mm256_or_si256(bits(_mm256_srli_epi16(low_0, 4), 15), bits(high, 48));
        values[3] = _mm256_or_si256(bits(_mm256_srli_epi16(low_1, 4), 15), bits(_mm256_srli_epi16(high, 2), 48));
    }

    PD2_AVX2_INLINE static float scale(const Block & block) { return _cvtsh_ss(block.d); }

    PD2_AVX2_INLINE __m256i run_scale(int run) const {
        constexpr int64_t each = 0x0101010101010101;
        return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, _mm_set_epi64x(each * (2 * run + 1), each * (2 * run))));
    }

    // Values are stored 32 too large.
    template <int N>
    PD2_AVX2_INLINE void start(const PanelBlock<N> & rows, __m256i * dots) const {
        const __m256i offsets =
            _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(_mm256_cvtepi8_epi16(scales), 5));
        PD2_UNROLL
        for (int j = 0; j < N; ++j) {
            dots[j] = _mm256_madd_epi16(rows.sums_of_16[j], offsets);
        }
    }
};

template <class BlockType>
struct WithMinima {
    using Block                      = BlockType;
    static constexpr bool has_minima = true;

    __m256i scales;  // of eight runs, twice
    __m128i minima;

    // Of 12 bytes, 0 to 3 and 4 to 7 hold six bits of the first four scales and minima; their top bits and 8 to 11 the others.
    PD2_AVX2_INLINE explicit WithMinima(const Block & block) {
        uint32_t a, b, c;
        std::memcpy(&a, block.scales, 4);
        std::memcpy(&b, block.scales + 4, 4);
        std::memcpy(&c, block.scales + 8, 4);
        const uint64_t late_scales = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
        const uint64_t late_minima = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
        scales                     = _mm256_broadcastsi128_si256(words(late_scales << 32 | (a & 0x3f3f3f3f)));
        minima                     = words(late_minima << 32 | (b & 0x3f3f3f3f));
    }

    PD2_AVX2_INLINE static __m128i words(uint64_t bytes) {
        return _mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
    }

    PD2_AVX2_INLINE static float scale(const Block & block) { return _cvtsh_ss(block.data.data.d); }
    PD2_AVX2_INLINE static float minimum_scale(const Block & block) { return _cvtsh_ss(block.data.data.dmin); }

    PD2_AVX2_INLINE __m256i run_scale(int run) const {
        return _mm256_shuffle_epi8(scales, _mm256_set1_epi16(static_cast<int16_t>(0x0100 + 0x0202 * run)));
    }

    template <int N>
    PD2_AVX2_INLINE void start(const PanelBlock<N> &, __m256i * dots) const {
        PD2_UNROLL
        for (int j = 0; j < N; ++j) {
            dots[j] = _mm256_setzero_si256();
        }
    }
};

struct Q4 : WithMinima<block_q4_K> {
    PD2_AVX2_INLINE explicit Q4(const Block & block) : WithMinima(block) {}

    // ggml adds the minima's part up in four lanes.
    using Minima = __m128;
    PD2_AVX2_INLINE static Minima add(Minima sum, __m128 scale, __m128i dots) {
        return _mm_fmadd_ps(scale, _mm_cvtepi32_ps(dots), sum);
    }
    PD2_AVX2_INLINE static float total(Minima sum) {
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
    }

    PD2_AVX2_INLINE static void four(const Block & block, int half, __m256i * values) {
        for (int i = 0; i < 2; ++i) {
            const __m256i packed = load_bytes(block.qs + 64 * half + 32 * i);
            values[2 * i]        = bits(packed, 15);
            values[2 * i + 1]    = bits(_mm256_srli_epi16(packed, 4), 15);
        }
    }
};

struct Q5 : WithMinima<block_q5_K> {
    PD2_AVX2_INLINE explicit Q5(const Block & block) : WithMinima(block) {}

    // And here in one.
    using Minima = __m128;
    PD2_AVX2_INLINE static Minima add(Minima sum, __m128 scale, __m128i dots) {
        dots = _mm_hadd_epi32(dots, dots);
        dots = _mm_hadd_epi32(dots, dots);
        return _mm_fmadd_ss(scale, _mm_cvtepi32_ps(dots), sum);
    }
    PD2_AVX2_INLINE static float total(Minima sum) { return _mm_cvtss_f32(sum); }

    PD2_AVX2_INLINE static void four(const Block & block, int half, __m256i * values) {
        const __m256i fifth = _mm256_srli_epi16(load_bytes(block.qh), 4 * half);
        for (int i = 0; i < 2; ++i) {
            const __m256i packed = load_bytes(block.qs + 64 * half + 32 * i);
            values[2 * i]        = _mm256_or_si256(bits(packed, 15), bits(_mm256_slli_epi16(fifth, 4 - 2 * i), 16));
            values[2 * i + 1] =
                _mm256_or_si256(bits(_mm256_srli_epi16(packed, 4), 15), bits(_mm256_slli_epi16(fifth, 3 - 2 * i), 16));
        }
    }
};

// A weight row by N rows. Every sum is ggml's own: eight lanes of four products of every run, a multiplication and an addition
// a block.
template <class Weights, int N>
PD2_AVX2_INLINE void tile(const typename Weights::Block * weights, const PanelBlock<N> * rows, int64_t k, float * c,
                          int64_t ldc) {
    __m256 sums[N];
    __m128 minima[N];
    PD2_UNROLL
    for (int j = 0; j < N; ++j) {
        sums[j]   = _mm256_setzero_ps();
        minima[j] = _mm_setzero_ps();
    }
    for (const auto * end = weights + k; weights != end; ++weights, ++rows) {
        const Weights block(*weights);
        __m256i       dots[N];
        block.template start<N>(*rows, dots);
        PD2_UNROLL
        for (int half = 0; half < 2; ++half) {
            __m256i values[4];
            Weights::four(*weights, half, values);
            PD2_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int     run   = 4 * half + i;
                const __m256i scale = block.run_scale(run);
                PD2_UNROLL
                for (int j = 0; j < N; ++j) {
                    const __m256i pairs = _mm256_maddubs_epi16(values[i], rows->values[run][j]);
                    dots[j]             = _mm256_add_epi32(dots[j], _mm256_madd_epi16(scale, pairs));
                }
            }
        }
        const __m256 d = _mm256_set1_ps(Weights::scale(*weights));
        PD2_UNROLL
        for (int j = 0; j < N; ++j) {
            const __m256 scale = _mm256_mul_ps(_mm256_broadcast_ss(&rows->scales[j]), d);
            sums[j]            = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dots[j]), sums[j]);
        }
        if constexpr (Weights::has_minima) {
            const __m128 d_minima = _mm_set1_ps(-Weights::minimum_scale(*weights));
            PD2_UNROLL
            for (int j = 0; j < N; ++j) {
                const __m128 scale = _mm_mul_ps(_mm_broadcast_ss(&rows->scales[j]), d_minima);
                minima[j]          = Weights::add(minima[j], scale, _mm_madd_epi16(block.minima, rows->sums_of_32[j]));
            }
        }
    }
    float totals[N];
    sum_lanes_of<N>(sums, totals);
    PD2_UNROLL
    for (int j = 0; j < N; ++j) {
        if constexpr (Weights::has_minima) {
            totals[j] += Weights::total(minima[j]);
        }
        c[j * ldc] = totals[j];
    }
}

template <class Weights, int N>
PD2_AVX2 void multiply_n(const void * weights, int64_t stride, int64_t m, const void * panel, int64_t k, float * c,
                         int64_t ldc) {
    for (int64_t i = 0; i < m; ++i) {
        tile<Weights, N>(static_cast<const typename Weights::Block *>(weights) + i * stride,
                         static_cast<const PanelBlock<N> *>(panel), k, c + i, ldc);
    }
}

void prepare(const void * rows, int64_t stride, int n, int64_t k, void * panel) {
    using Prepare                        = void (*)(const block_q8_K *, int64_t, int64_t, void *);
    constexpr Prepare by_rows[most_rows] = {prepare_n<1>, prepare_n<2>, prepare_n<3>, prepare_n<4>,
                                            prepare_n<5>, prepare_n<6>, prepare_n<7>, prepare_n<8>};
    by_rows[n - 1](static_cast<const block_q8_K *>(rows), stride, k, panel);
}

template <class Weights>
void multiply(const void * weights, int64_t stride, int64_t m, const void * panel, int n, int64_t k, float * c,
              int64_t ldc) {
    using Multiply = void (*)(const void *, int64_t, int64_t, const void *, int64_t, float *, int64_t);
    constexpr Multiply by_rows[most_rows] = {multiply_n<Weights, 1>, multiply_n<Weights, 2>, multiply_n<Weights, 3>,
                                             multiply_n<Weights, 4>, multiply_n<Weights, 5>, multiply_n<Weights, 6>,
                                             multiply_n<Weights, 7>, multiply_n<Weights, 8>};
    by_rows[n - 1](weights, stride, m, panel, k, c, ldc);
}

}  // namespace

const ProductKernel q4_k_product = {GGML_TYPE_Q4_K, GGML_TYPE_Q8_K, sizeof(PanelBlock<8>), prepare, multiply<Q4>};
const ProductKernel q5_k_product = {GGML_TYPE_Q5_K, GGML_TYPE_Q8_K, sizeof(PanelBlock<8>), prepare, multiply<Q5>};
const ProductKernel q6_k_product = {GGML_TYPE_Q6_K, GGML_TYPE_Q8_K, sizeof(PanelBlock<8>), prepare, multiply<Q6>};

}  // namespace pd2

#endif
