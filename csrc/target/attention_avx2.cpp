#include "attention.h"

#ifdef __x86_64__

#include <cmath>
#include <cstring>

#include "attention_tile.h"

namespace pd2 {

namespace {

constexpr int64_t  kGroups = kTileCells / kLanes;
constexpr int64_t  kDirect = 4;  // queries up to which keys and values are converted as they are read, not once for all
constexpr uint16_t kHidden = 0xfc00;  // -infinity, F16
constexpr float    kInfinity   = INFINITY;
constexpr int64_t  kTileFloats = kBlockQueries * (kTileCells + kLanes + 2);

using ScoreTile = void (*)(const float *, int64_t, int64_t, const Tile &, float *);
using AddTile   = void (*)(const Scratch &, int64_t, int64_t, const Tile &);

ScoreTile score_function(ggml_type type) {
    return type == GGML_TYPE_F16    ? score_tile<Kind::kF16>
           : type == GGML_TYPE_BF16 ? score_tile<Kind::kBf16>
                                    : score_tile<Kind::kF32>;
}

AddTile add_function(ggml_type type) {
    return type == GGML_TYPE_F16    ? add_tile<Kind::kF16>
           : type == GGML_TYPE_BF16 ? add_tile<Kind::kBf16>
                                    : add_tile<Kind::kF32>;
}

// Makes F32 of the rows that are looked at.
void convert(ggml_type type, int64_t n, const Tile & tile, const char ** rows, float * out) {
    const auto to_float = ggml_get_type_traits(type)->to_float;
    for (int64_t cell = tile.first_group * kLanes; cell < tile.end_group * kLanes; ++cell, out += n) {
        if (type == GGML_TYPE_F16) {
            convert_row<Kind::kF16>(rows[cell], n, out);
        } else if (type == GGML_TYPE_BF16) {
            convert_row<Kind::kBf16>(rows[cell], n, out);
        } else {
            to_float(rows[cell], out, n);
        }
        rows[cell] = reinterpret_cast<const char *>(out);
    }
}

bool is_direct(ggml_type type, int64_t n_queries) {
    return type == GGML_TYPE_F32 || (n_queries <= kDirect && (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16));
}

class Block {
  public:
    Block(const Attention & attention, const AttentionBlock & block, float * scratch);

    void run();

  private:
    int64_t head(int64_t i) const { return kv_head_ * a_.heads_per_head + (first_ + i) % a_.heads_per_head; }
    int64_t row(int64_t i) const { return (first_ + i) / a_.heads_per_head; }

    PD2_AVX2 void attend(bool carefully);
    PD2_AVX2 bool see(Tile & tile) const;
    PD2_AVX2 void weigh(const Tile & tile, int64_t i) const;
    PD2_AVX2 bool finish(int64_t i) const;

    const char * mask_row(int64_t i) const {
        const ggml_tensor * m = a_.mask;
        return static_cast<const char *>(m->data) + row(i) * m->nb[1] + head(i) % m->ne[2] * m->nb[2] +
               sequence_ % m->ne[3] * m->nb[3];
    }

    // 8 values of a row of the mask from `cell` on; what is beyond the last cell is hidden.
    PD2_INLINE static __m128i mask_group(const char * mask, int64_t cell, int64_t n_cells) {
        if (cell + kLanes <= n_cells) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(mask + cell * sizeof(ggml_fp16_t)));
        }
        uint16_t values[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) {
            values[i] = kHidden;
            if (cell + i < n_cells) {
                std::memcpy(values + i, mask + (cell + i) * sizeof(ggml_fp16_t), sizeof(ggml_fp16_t));
            }
        }
        return _mm_loadu_si128(reinterpret_cast<const __m128i *>(values));
    }

    const Attention & a_;
    int64_t           sequence_, kv_head_, first_, n_;
    int64_t           dk_, dv_, n_cells_;
    const char *      keys_;
    const char *      values_;
    Scratch           s_;
};

Block::Block(const Attention & attention, const AttentionBlock & block, float * scratch)
    : a_(attention),
      sequence_(block.sequence),
      kv_head_(block.kv_head),
      first_(block.first),
      n_(block.end - block.first),
      dk_(a_.k->ne[0]),
      dv_(a_.v->ne[0]),
      n_cells_(a_.k->ne[1]) {
    const auto head_of = [this](const ggml_tensor * t) {
        return static_cast<const char *>(t->data) + kv_head_ * t->nb[2] +
               sequence_ / (a_.q->ne[3] / t->ne[3]) * t->nb[3];
    };
    keys_   = head_of(a_.k);
    values_ = head_of(a_.v);

    const auto take = [&scratch](int64_t n) {
        float * taken = scratch;
        scratch += n;
        return taken;
    };
    s_.q       = take(kBlockQueries * dk_);
    s_.out     = take(kBlockQueries * dv_);
    s_.keys    = take(kTileCells * dk_);
    s_.values  = take(kTileCells * dv_);
    s_.scores  = take(kBlockQueries * kTileCells);
    s_.sums    = take(kBlockQueries * kLanes);
    s_.maxima  = take(kBlockQueries);
    s_.rescale = take(kBlockQueries);
}

// Which groups of the tile's cells are seen; false: none is.
bool Block::see(Tile & tile) const {
    const int64_t n_groups = (tile.n_cells + kLanes - 1) / kLanes;
    tile.first_group       = 0;
    tile.end_group         = n_groups;
    if (!a_.mask) {
        return true;
    }
    const __m128i hidden = _mm_set1_epi16(static_cast<int16_t>(kHidden));
    __m128i       nobody[kGroups];
    for (__m128i & group : nobody) {
        group = _mm_set1_epi16(-1);
    }
    const char * last = nullptr;
    for (int64_t i = 0; i < n_; ++i) {
        const char * mask = mask_row(i);
        if (mask == last) {
            continue;  // heads share it
        }
        last = mask;
        for (int64_t g = 0; g < n_groups; ++g) {
            const __m128i values = mask_group(mask, tile.first_cell + g * kLanes, n_cells_);
            nobody[g]            = _mm_and_si128(nobody[g], _mm_cmpeq_epi16(values, hidden));
        }
    }
    const auto is_hidden = [&](int64_t g) { return _mm_movemask_epi8(nobody[g]) == 0xffff; };
    while (tile.end_group > 0 && is_hidden(tile.end_group - 1)) {
        --tile.end_group;
    }
    while (tile.first_group < tile.end_group && is_hidden(tile.first_group)) {
        ++tile.first_group;
    }
    return tile.first_group < tile.end_group;
}

// Makes weights of the scores of query i, e^(score - maximum so far), and adds them up.
void Block::weigh(const Tile & tile, int64_t i) const {
    float *      scores  = s_.scores + i * kTileCells;
    const char * mask    = a_.mask ? mask_row(i) : nullptr;
    const __m256 nothing = _mm256_set1_ps(-kInfinity);
    const __m256 cap     = _mm256_set1_ps(a_.soft_cap);

    __m256 highest = nothing;
    for (int64_t g = tile.first_group; g < tile.end_group; ++g) {
        const int64_t cell  = tile.first_cell + g * kLanes;
        __m256        score = _mm256_load_ps(scores + g * kLanes);
        if (a_.soft_cap != 0.0f) {
            score = _mm256_mul_ps(hyperbolic_tangent(score), cap);
        }
        if (mask) {
            const __m256 added = _mm256_cvtph_ps(mask_group(mask, cell, n_cells_));
            // whatever the score: an unused cell may hold anything
            score = _mm256_blendv_ps(_mm256_add_ps(score, added), nothing, _mm256_cmp_ps(added, nothing, _CMP_EQ_OQ));
        } else if (cell + kLanes > n_cells_) {
            const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            const __m256i past = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(static_cast<int>(n_cells_ - cell - 1)));
            score              = _mm256_blendv_ps(score, nothing, _mm256_castsi256_ps(past));
        }
        _mm256_store_ps(scores + g * kLanes, score);
        highest = _mm256_max_ps(highest, score);
    }

    const float  before  = s_.maxima[i];
    const float  maximum = std::fmax(before, largest(highest));
    const __m256 base    = _mm256_set1_ps(maximum == -kInfinity ? 0.0f : maximum);  // nothing seen yet: weights of 0
    const __m256 rescale = exponential(_mm256_sub_ps(_mm256_set1_ps(before), base));

    __m256 sum = _mm256_setzero_ps();
    for (int64_t g = tile.first_group; g < tile.end_group; ++g) {
        const __m256 weight = exponential(_mm256_sub_ps(_mm256_load_ps(scores + g * kLanes), base));
        _mm256_store_ps(scores + g * kLanes, weight);
        sum = _mm256_add_ps(sum, weight);
    }
    float * sums = s_.sums + i * kLanes;
    _mm256_store_ps(sums, _mm256_fmadd_ps(_mm256_load_ps(sums), rescale, sum));
    s_.maxima[i]  = maximum;
    s_.rescale[i] = _mm256_cvtss_f32(rescale);
}

// Writes the result of query i; false if it is no number somewhere.
bool Block::finish(int64_t i) const {
    float factor = 1.0f;
    float sum    = total(_mm256_load_ps(s_.sums + i * kLanes));
    if (a_.sinks) {
        const float  sink    = static_cast<const float *>(a_.sinks->data)[head(i)];
        const float  maximum = std::fmax(s_.maxima[i], sink);
        const __m256 base    = _mm256_set1_ps(maximum == -kInfinity ? 0.0f : maximum);
        factor               = _mm256_cvtss_f32(exponential(_mm256_sub_ps(_mm256_set1_ps(s_.maxima[i]), base)));
        sum                  = sum * factor + _mm256_cvtss_f32(exponential(_mm256_sub_ps(_mm256_set1_ps(sink), base)));
    }
    factor = sum == 0.0f ? 0.0f : factor / sum;

    const ggml_tensor * dst = a_.dst;
    float * to = reinterpret_cast<float *>(static_cast<char *>(dst->data) + head(i) * dst->nb[1] + row(i) * dst->nb[2] +
                                           sequence_ * dst->nb[3]);
    __m256  odd = _mm256_setzero_ps();
    for (int64_t d = 0; d < dv_; d += kLanes) {
        const __m256 x = _mm256_mul_ps(_mm256_load_ps(s_.out + i * dv_ + d), _mm256_set1_ps(factor));
        odd            = _mm256_or_ps(odd, _mm256_sub_ps(x, x));  // 0, but for infinity and what is no number
        _mm256_storeu_ps(to + d, x);
    }
    return _mm256_movemask_ps(_mm256_cmp_ps(odd, odd, _CMP_UNORD_Q)) == 0;
}

// Carefully: values with a weight of 0 are not read. A block of one query.
void Block::attend(bool carefully) {
    const __m256 scale = _mm256_set1_ps(a_.soft_cap != 0.0f ? a_.scale / a_.soft_cap : a_.scale);
    for (int64_t i = 0; i < n_; ++i) {
        const ggml_tensor * q = a_.q;
        const float * from    = reinterpret_cast<const float *>(static_cast<const char *>(q->data) + row(i) * q->nb[1] +
                                                             head(i) * q->nb[2] + sequence_ * q->nb[3]);
        for (int64_t d = 0; d < dk_; d += kLanes) {
            _mm256_store_ps(s_.q + i * dk_ + d, _mm256_mul_ps(_mm256_loadu_ps(from + d), scale));
        }
        _mm256_store_ps(s_.sums + i * kLanes, _mm256_setzero_ps());
        s_.maxima[i] = -kInfinity;
    }
    std::memset(s_.out, 0, (n_ + (carefully ? 1 : 0)) * dv_ * sizeof(float));

    const bool      direct_keys   = is_direct(a_.k->type, n_);
    const bool      direct_values = is_direct(a_.v->type, n_);
    const ScoreTile score         = score_function(direct_keys ? a_.k->type : GGML_TYPE_F32);
    const AddTile   add           = add_function(direct_values ? a_.v->type : GGML_TYPE_F32);

    Tile tile;
    tile.key_stride  = static_cast<int64_t>(a_.k->nb[1]);
    tile.key_bytes   = static_cast<int64_t>(ggml_row_size(a_.k->type, dk_));
    tile.value_bytes = static_cast<int64_t>(ggml_row_size(a_.v->type, dv_));
    for (tile.first_cell = 0; tile.first_cell < n_cells_; tile.first_cell += kTileCells) {
        tile.n_cells = n_cells_ - tile.first_cell < kTileCells ? n_cells_ - tile.first_cell : kTileCells;
        if (!see(tile)) {
            continue;  // weights of 0, which change no bit of anything
        }
        for (int64_t i = tile.first_group * kLanes; i < tile.end_group * kLanes; ++i) {
            const int64_t cell = tile.first_cell + (i < tile.n_cells ? i : tile.n_cells - 1);
            tile.keys[i]       = keys_ + cell * a_.k->nb[1];
            tile.values[i]     = values_ + cell * a_.v->nb[1];
        }
        const int64_t next = tile.first_cell + kTileCells;
        tile.next_keys     = next + kTileCells <= n_cells_ ? keys_ + next * tile.key_stride : nullptr;
        if (!direct_keys) {
            convert(a_.k->type, dk_, tile, tile.keys, s_.keys);
        }
        score(s_.q, dk_, n_, tile, s_.scores);
        for (int64_t i = 0; i < n_; ++i) {
            weigh(tile, i);
        }
        if (!direct_values) {
            convert(a_.v->type, dv_, tile, tile.values, s_.values);
        }
        for (int64_t i = tile.first_group * kLanes; carefully && i < tile.end_group * kLanes; ++i) {
            if (s_.scores[i] == 0.0f) {
                tile.values[i] = reinterpret_cast<const char *>(s_.out + dv_);  // zeros, of any type
            }
        }
        add(s_, dv_, n_, tile);
    }
}

void Block::run() {
    attend(false);
    uint64_t odd = 0;
    static_assert(kBlockQueries <= 64, "a bit for each query");
    for (int64_t i = 0; i < n_; ++i) {
        odd |= static_cast<uint64_t>(!finish(i)) << i;
    }
    // Infinity times a weight of 0 is no number: a cell that one row must not see would show in it, where that row alone, which
    // skips cells that nobody sees, might not notice. So such rows are done again, each by itself.
    const int64_t first = first_;
    n_                  = 1;
    for (int64_t i = 0; odd != 0; ++i, odd >>= 1) {
        if (odd & 1) {
            first_ = first + i;
            attend(true);
            finish(0);
        }
    }
}

}  // namespace

bool has_attention_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

size_t attention_avx2_scratch(const Attention & attention) {
    const int64_t n = (kBlockQueries + kTileCells) * (attention.k->ne[0] + attention.v->ne[0]) + kTileFloats;
    return static_cast<size_t>(n) * sizeof(float);
}

void attend_avx2(const Attention & attention, const AttentionBlock & block, float * scratch) {
    Block(attention, block, scratch).run();
}

}  // namespace pd2

#endif
