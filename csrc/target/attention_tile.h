// What attention_avx2.cpp computes with: vectors, and products of a few queries with a tile of cells.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention.h"

// Functions are compiled for these instructions one by one: with a flag for the file, a copy of some inline function that another
// file shares would be too, and would run where they are missing.
#define PD2_AVX2 __attribute__((target("avx2,fma,f16c")))
#define PD2_INLINE PD2_AVX2 __attribute__((always_inline)) inline

namespace pd2 {

constexpr int64_t kLanes = 8;

enum class Kind { kF32, kF16, kBf16 };

template <Kind kind>
PD2_INLINE __m256 load(const char * row, int64_t d) {
    if (kind == Kind::kF32) {
        return _mm256_loadu_ps(reinterpret_cast<const float *>(row) + d);
    }
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(row + 2 * d));
    if (kind == Kind::kF16) {
        return _mm256_cvtph_ps(half);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// e^x for x <= 0, to 2e-7; 0 below -87.3, where the result would be no normal number. e^0 is 1 exactly.
PD2_INLINE __m256 exponential(__m256 x) {
    const __m256 is_normal = _mm256_cmp_ps(x, _mm256_set1_ps(-87.3f), _CMP_NLT_UQ);  // what is no number stays so

    const __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // ln 2 in two parts, the first of few bits: n times it is exact
    __m256 r            = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r                   = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p            = _mm256_set1_ps(1.0f / 720);
    p                   = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p                   = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p                   = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p                   = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p                   = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p                   = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(power)), is_normal);
}

PD2_INLINE __m256 hyperbolic_tangent(__m256 x) {
    const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
    const __m256 one  = _mm256_set1_ps(1.0f);
    const __m256 e    = exponential(_mm256_mul_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(-2.0f)));
    return _mm256_or_ps(_mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e)), sign);
}

PD2_INLINE float largest(__m256 x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y        = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

PD2_INLINE float total(__m256 x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y        = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

// The sums of four vectors.
PD2_INLINE __m128 totals(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 ab   = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const __m256 cd   = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const __m256 low  = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd)));
    const __m256 high = _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd)));
    const __m256 sum  = _mm256_add_ps(low, high);
    return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}

// Scores of a few queries, `dk` apart, on a group of 8 cells. A score is a sum in the order of its lanes and of their total,
// whatever `n` is.
template <int n, Kind kind>
PD2_INLINE void score_group(const float * q, int64_t dk, const char * const * rows, float * scores) {
    constexpr int kCells = n == 1 ? 8 : 4;  // as many sums as there are registers for
    for (int first = 0; first < kLanes; first += kCells) {
        __m256 sums[n][kCells];
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < kCells; ++j) {
                sums[i][j] = _mm256_setzero_ps();
            }
        }
        for (int64_t d = 0; d < dk; d += kLanes) {
            __m256 x[n];
            for (int i = 0; i < n; ++i) {
                x[i] = _mm256_load_ps(q + i * dk + d);
            }
            for (int j = 0; j < kCells; ++j) {
                const __m256 key = load<kind>(rows[first + j], d);
                for (int i = 0; i < n; ++i) {
                    sums[i][j] = _mm256_fmadd_ps(x[i], key, sums[i][j]);
                }
            }
        }
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < kCells; j += 4) {
                _mm_store_ps(scores + i * kTileCells + first + j,
                             totals(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]));
            }
        }
    }
}

// Adds weighted values to the outputs of a few queries, `dv` apart, in `n_vectors` vectors of each. Cell after cell, whatever `n` is.
template <int n, int n_vectors, Kind kind>
PD2_INLINE void add_vectors(float * out, int64_t dv, int64_t d, const float * weights, const float * rescale,
                            const char * const * rows, int64_t first, int64_t end) {
    __m256 sums[n][n_vectors];
    for (int i = 0; i < n; ++i) {
        const __m256 factor = _mm256_broadcast_ss(rescale + i);
        for (int j = 0; j < n_vectors; ++j) {
            sums[i][j] = _mm256_mul_ps(_mm256_load_ps(out + i * dv + d + j * kLanes), factor);
        }
    }
    for (int64_t cell = first; cell < end; ++cell) {
        __m256 weight[n];
        for (int i = 0; i < n; ++i) {
            weight[i] = _mm256_broadcast_ss(weights + i * kTileCells + cell);
        }
        for (int j = 0; j < n_vectors; ++j) {
            const __m256 value = load<kind>(rows[cell], d + j * kLanes);
            for (int i = 0; i < n; ++i) {
                sums[i][j] = _mm256_fmadd_ps(weight[i], value, sums[i][j]);
            }
        }
    }
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n_vectors; ++j) {
            _mm256_store_ps(out + i * dv + d + j * kLanes, sums[i][j]);
        }
    }
}

template <int n, Kind kind>
PD2_INLINE void add_values(float * out, int64_t dv, const float * weights, const float * rescale,
                           const char * const * rows, int64_t first, int64_t end) {
    int64_t d = 0;
    for (; n == 1 && d + 8 * kLanes <= dv; d += 8 * kLanes) {
        add_vectors<n, n == 1 ? 8 : 1, kind>(out, dv, d, weights, rescale, rows, first, end);
    }
    for (; d + 4 * kLanes <= dv; d += 4 * kLanes) {
        add_vectors<n, 4, kind>(out, dv, d, weights, rescale, rows, first, end);
    }
    for (; d < dv; d += kLanes) {
        add_vectors<n, 1, kind>(out, dv, d, weights, rescale, rows, first, end);
    }
}

// What a thread has in its scratch memory: queries, outputs and scores of a block, keys and values of a tile.
struct Scratch {
    float * q;
    float * out;
    float * keys;
    float * values;
    float * scores;   // [kBlockQueries][kTileCells], then weights
    float * sums;     // [kBlockQueries][kLanes] of weights; a cell's lane is its number modulo 8
    float * maxima;   // [kBlockQueries]
    float * rescale;  // [kBlockQueries]: what a new maximum takes from the sums before
};

// A tile: where its cells are, and which groups of 8 cells some query of the block sees.
struct Tile {
    int64_t      first_cell;
    int64_t      n_cells;
    int64_t      first_group;
    int64_t      end_group;
    const char * keys[kTileCells];
    const char * values[kTileCells];

    const char * next_keys;  // of the first cell of the tile after this one; null: there is none
    int64_t      key_stride, key_bytes, value_bytes;
};

// Asks for what comes next while a group is scored: its values, and the keys in its place in the next tile. A head's rows lie too
// far apart in a cache for the CPU to see the pattern.
PD2_INLINE void fetch_ahead(const Tile & tile, int64_t group) {
    constexpr int64_t kLine = 64;
    for (int64_t cell = group * kLanes; cell < (group + 1) * kLanes; ++cell) {
        for (int64_t at = 0; at < tile.value_bytes; at += kLine) {
            _mm_prefetch(tile.values[cell] + at, _MM_HINT_T0);
        }
        for (int64_t at = 0; tile.next_keys && at < tile.key_bytes; at += kLine) {
            _mm_prefetch(tile.next_keys + cell * tile.key_stride + at, _MM_HINT_T0);
        }
    }
}

template <Kind kind>
PD2_AVX2 void score_tile(const float * q, int64_t dk, int64_t n, const Tile & tile, float * scores) {
    for (int64_t i = 0; i < n;) {
        const int64_t left = n - i == 4 ? 2 : n - i;  // two and two rather than three and one
        for (int64_t g = tile.first_group; g < tile.end_group; ++g) {
            if (i == 0) {
                fetch_ahead(tile, g);
            }
            const char * const * rows = tile.keys + g * kLanes;
            const float *        x    = q + i * dk;
            float *              s    = scores + i * kTileCells + g * kLanes;
            if (left >= 3) {
                score_group<3, kind>(x, dk, rows, s);
            } else if (left == 2) {
                score_group<2, kind>(x, dk, rows, s);
            } else {
                score_group<1, kind>(x, dk, rows, s);
            }
        }
        i += left < 3 ? left : 3;
    }
}

template <Kind kind>
PD2_AVX2 void add_tile(const Scratch & s, int64_t dv, int64_t n, const Tile & tile) {
    const int64_t first = tile.first_group * kLanes;
    const int64_t end   = tile.end_group * kLanes;
    for (int64_t i = 0; i < n;) {
        const int64_t left    = n - i == 4 ? 2 : n - i;
        float *       out     = s.out + i * dv;
        const float * weights = s.scores + i * kTileCells;
        if (left >= 3) {
            add_values<3, kind>(out, dv, weights, s.rescale + i, tile.values, first, end);
            i += 3;
        } else if (left == 2) {
            add_values<2, kind>(out, dv, weights, s.rescale + i, tile.values, first, end);
            i += 2;
        } else {
            add_values<1, kind>(out, dv, weights, s.rescale + i, tile.values, first, end);
            i += 1;
        }
    }
}

template <Kind kind>
PD2_AVX2 void convert_row(const char * row, int64_t n, float * out) {
    for (int64_t d = 0; d < n; d += kLanes) {
        _mm256_store_ps(out + d, load<kind>(row, d));
    }
}

}  // namespace pd2
