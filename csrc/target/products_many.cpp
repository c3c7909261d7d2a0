#include "products_many.h"

#include <algorithm>
#include <cstring>

#include "products_kernel.h"

#ifdef PD2_X86_PRODUCTS

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

namespace pd2 {
namespace {

// A vector's eight lanes belong to eight weight rows, so nothing is added up across lanes and a block's scale is applied once for
// eight rows. Weights are laid out for that anew, in groups of eight rows, once for all rows they are multiplied by.
constexpr int64_t kGroup    = 8;
constexpr int     kGroups   = 2;   // that share a row's broadcast values
constexpr int     kRows     = 4;   // multiplied at once, of those decoded together
constexpr int     kValues   = 32;  // of a block
constexpr int     kQuarters = kValues / 4;
constexpr int     kPairs    = kValues / 2;

PD2_AVX2_INLINE float scale_of(ggml_half d) {
    return _cvtsh_ss(d);
}

// Eight rows of eight dwords: lane r of vector q becomes dword q of row r.
PD2_AVX2_INLINE void transpose(__m256i * x) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i]     = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i]     = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        x[i]     = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        x[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

// Signed bytes: a product of two does not fit the instruction for bytes, so both sides are widened to 16 bits.
struct Q8 {
    using Weights = block_q8_0;

    static constexpr int64_t fewest = 24;  // rows for which laying out pays

    struct Block {
        __m256i pairs[kPairs];  // [pair] eight rows' weights 2 pair and 2 pair + 1
        __m256  scales;
    };
    struct Row {
        int16_t values[kValues];
        float   scale;
        float   unused[3];
    };

    PD2_AVX2 static void lay_out(const Weights * const * rows, int64_t block, Block & out) {
        __m256i x[kGroup];
        float   scales[kGroup];
        for (int r = 0; r < kGroup; ++r) {
            const Weights & weights = rows[r][block];
            x[r]                    = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(weights.qs));
            scales[r]               = scale_of(weights.d);
        }
        transpose(x);
        // Each dword holds two pairs: those of all rows are brought together, and widened.
        const __m256i together = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8,
                                                  9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        for (int q = 0; q < kQuarters; ++q) {
            const __m256i both   = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x[q], together), 0xD8);
            out.pairs[2 * q]     = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(both));
            out.pairs[2 * q + 1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(both, 1));
        }
        out.scales = _mm256_loadu_ps(scales);
    }

    PD2_AVX2 static void prepare(const block_q8_0 & block, Row & out) {
        const auto * bytes = reinterpret_cast<const __m128i *>(block.qs);
        auto *       wide  = reinterpret_cast<__m256i *>(out.values);
        _mm256_storeu_si256(wide, _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes)));
        _mm256_storeu_si256(wide + 1, _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes + 1)));
        out.scale = scale_of(block.d);
    }

    // sums[group][row] of one block, exact. groups and rows: their first blocks, `k` apart.
    template <int N>
    PD2_AVX2_INLINE static void multiply(const Block * groups, const Row * rows, int64_t k, __m256i (*sums)[N]) {
        PD2_UNROLL
        for (int g = 0; g < kGroups; ++g) {
            PD2_UNROLL
            for (int r = 0; r < N; ++r) {
                sums[g][r] = _mm256_setzero_si256();
            }
        }
#pragma GCC unroll 1  // else GCC adds up in a tree, which takes more registers than there are
        for (int pair = 0; pair < kPairs; ++pair) {
            PD2_UNROLL
            for (int r = 0; r < N; ++r) {
                int32_t both;
                std::memcpy(&both, rows[r * k].values + 2 * pair, sizeof both);
                const __m256i x = _mm256_set1_epi32(both);
                PD2_UNROLL
                for (int g = 0; g < kGroups; ++g) {
                    sums[g][r] = _mm256_add_epi32(sums[g][r], _mm256_madd_epi16(groups[g * k].pairs[pair], x));
                }
            }
        }
    }
};

// Weights of 0 to 31, less 16. Four products of two bytes each still fit 16 bits.
struct Q5 {
    using Weights = block_q5_0;

    static constexpr int64_t fewest = 12;

    struct Block {
        __m256i quarters[kQuarters];  // [quarter] eight rows' weights 4 quarter .. 4 quarter + 3
        __m256  scales;
    };
    struct Row {
        int8_t  values[kValues];
        float   scale;
        int32_t offset;  // what the 16 come to
        int32_t unused[2];
    };

    PD2_AVX2 static void lay_out(const Weights * const * rows, int64_t block, Block & out) {
        const __m256i byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
        const __m256i bit  = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
        float         scales[kGroup];
        for (int r = 0; r < kGroup; ++r) {
            const Weights & weights = rows[r][block];
            const __m128i   packed  = _mm_loadu_si128(reinterpret_cast<const __m128i *>(weights.qs));
            const __m256i   low =
                _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(packed, 4), packed), _mm256_set1_epi8(15));
            int32_t fifth;
            std::memcpy(&fifth, weights.qh, sizeof fifth);
            const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(fifth), byte), bit);
            const __m256i set = _mm256_cmpeq_epi8(own, bit);
            out.quarters[r]   = _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)));
            scales[r]         = scale_of(weights.d);
        }
        transpose(out.quarters);
        out.scales = _mm256_loadu_ps(scales);
    }

    PD2_AVX2 static void prepare(const block_q8_0 & block, Row & out) {
        std::memcpy(out.values, block.qs, sizeof out.values);
        int32_t sum = 0;
        for (const int8_t value : block.qs) {
            sum += value;
        }
        out.offset = -16 * sum;
        out.scale  = scale_of(block.d);
    }

    template <int N>
    PD2_AVX2_INLINE static void multiply(const Block * groups, const Row * rows, int64_t k, __m256i (*sums)[N]) {
        PD2_UNROLL
        for (int r = 0; r < N; ++r) {
            PD2_UNROLL
            for (int g = 0; g < kGroups; ++g) {
                sums[g][r] = _mm256_set1_epi32(rows[r * k].offset);
            }
        }
        PD2_UNROLL
        for (int half = 0; half < kQuarters; half += 4) {
            __m256i words[kGroups][N];
            PD2_UNROLL
            for (int g = 0; g < kGroups; ++g) {
                PD2_UNROLL
                for (int r = 0; r < N; ++r) {
                    words[g][r] = _mm256_setzero_si256();
                }
            }
#pragma GCC unroll 1
            for (int quarter = half; quarter < half + 4; ++quarter) {
                PD2_UNROLL
                for (int r = 0; r < N; ++r) {
                    int32_t four;
                    std::memcpy(&four, rows[r * k].values + 4 * quarter, sizeof four);
                    const __m256i x = _mm256_set1_epi32(four);
                    PD2_UNROLL
                    for (int g = 0; g < kGroups; ++g) {
                        words[g][r] =
                            _mm256_add_epi16(words[g][r], _mm256_maddubs_epi16(groups[g * k].quarters[quarter], x));
                    }
                }
            }
            PD2_UNROLL
            for (int g = 0; g < kGroups; ++g) {
                PD2_UNROLL
                for (int r = 0; r < N; ++r) {
                    sums[g][r] = _mm256_add_epi32(sums[g][r], _mm256_madd_epi16(words[g][r], _mm256_set1_epi16(1)));
                }
            }
        }
    }
};

// Two groups of weight rows by N rows: results[row][group * kGroup + weight row].
template <typename Type, int N>
PD2_AVX2 void tile(const typename Type::Block * groups, const typename Type::Row * rows, int64_t k,
                   float (*results)[kGroups * kGroup]) {
    __m256 totals[kGroups][N];
    for (int g = 0; g < kGroups; ++g) {
        for (int r = 0; r < N; ++r) {
            totals[g][r] = _mm256_setzero_ps();
        }
    }
    for (int64_t block = 0; block < k; ++block) {
        __m256i sums[kGroups][N];
        Type::template multiply<N>(groups + block, rows + block, k, sums);
        PD2_UNROLL
        for (int r = 0; r < N; ++r) {
            const __m256 scale = _mm256_broadcast_ss(&rows[r * k + block].scale);
            PD2_UNROLL
            for (int g = 0; g < kGroups; ++g) {
                totals[g][r] = _mm256_fmadd_ps(_mm256_mul_ps(scale, groups[g * k + block].scales),
                                               _mm256_cvtepi32_ps(sums[g][r]), totals[g][r]);
            }
        }
    }
    for (int r = 0; r < N; ++r) {
        for (int g = 0; g < kGroups; ++g) {
            _mm256_storeu_ps(results[r] + g * kGroup, totals[g][r]);
        }
    }
}

// Weight rows begin .. end - 1.
template <typename Type>
void multiply(int64_t begin, int64_t end, int64_t n, int64_t k, const void * a, int64_t lda, const void * b,
              int64_t ldb, float * c, int64_t ldc) {
    using Block                 = typename Type::Block;
    using Row                   = typename Type::Row;
    using Tile                  = void (*)(const Block *, const Row *, int64_t, float(*)[kGroups * kGroup]);
    constexpr Tile tiles[kRows] = {tile<Type, 1>, tile<Type, 2>, tile<Type, 3>, tile<Type, 4>};

    const auto * weights = static_cast<const typename Type::Weights *>(a);
    const auto * given   = static_cast<const block_q8_0 *>(b);
    auto *       groups  = static_cast<Block *>(product_memory(kGroups * k * sizeof(Block) + n * k * sizeof(Row)));
    auto *       rows    = reinterpret_cast<Row *>(groups + kGroups * k);
    for (int64_t row = 0; row < n; ++row) {
        for (int64_t block = 0; block < k; ++block) {
            Type::prepare(given[row * ldb + block], rows[row * k + block]);
        }
    }
    for (int64_t first = begin; first < end; first += kGroups * kGroup) {
        const int64_t count = std::min<int64_t>(kGroups * kGroup, end - first);
        for (int g = 0; g < kGroups; ++g) {
            const typename Type::Weights * of[kGroup];
            for (int64_t r = 0; r < kGroup; ++r) {  // beyond the last: the last again
                of[r] = weights + (first + std::min(g * kGroup + r, count - 1)) * lda;
            }
            for (int64_t block = 0; block < k; ++block) {
                Type::lay_out(of, block, groups[g * k + block]);
            }
        }
        for (int64_t row = 0; row < n; row += kRows) {
            const int64_t together = std::min<int64_t>(kRows, n - row);
            float         results[kRows][kGroups * kGroup];
            tiles[together - 1](groups, rows + row * k, k, results);
            for (int64_t r = 0; r < together; ++r) {
                std::memcpy(c + (row + r) * ldc + first, results[r], count * sizeof(float));
            }
        }
    }
}

}  // namespace

bool multiply_many_rows(int ith, int nth, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b,
                        int64_t ldb, float * c, int64_t ldc, ggml_type type_a, ggml_type type_b) {
    const bool is_q8 = type_a == GGML_TYPE_Q8_0;
    if ((!is_q8 && type_a != GGML_TYPE_Q5_0) || type_b != GGML_TYPE_Q8_0 || n < (is_q8 ? Q8::fewest : Q5::fewest) ||
        !products_run_here()) {
        return false;
    }
    constexpr int64_t together = kGroups * kGroup;
    const int64_t     shares   = (m + together - 1) / together;
    const int64_t     begin    = shares * ith / nth * together;
    const int64_t     end      = std::min(m, shares * (ith + 1) / nth * together);
    if (begin < end) {
        (is_q8 ? multiply<Q8> : multiply<Q5>)(begin, end, n, k, a, lda, b, ldb, c, ldc);
    }
    return true;
}

}  // namespace pd2

#else

namespace pd2 {

bool multiply_many_rows(int, int, int64_t, int64_t, int64_t, const void *, int64_t, const void *, int64_t, float *,
                        int64_t, ggml_type, ggml_type) {
    return false;
}

}  // namespace pd2

#endif
