#include "attention.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ggml-cpu-impl.h"

#if defined(PD2_WRAP_ATTENTION) && defined(__x86_64__)

namespace pd2 {

namespace {

// For comparisons: PYDFLASH2_CPU_KERNELS=off leaves attention to ggml.
bool is_wanted() {
    static const bool wanted = [] {
        const char * value = std::getenv("PYDFLASH2_CPU_KERNELS");
        return has_attention_avx2() && !(value && std::strcmp(value, "off") == 0);
    }();
    return wanted;
}

// False: a kind of attention that is left to ggml (ALiBi, heads of odd sizes, layouts that llama.cpp does not make).
bool read(ggml_tensor * dst, Attention & a) {
    a.dst   = dst;
    a.q     = dst->src[0];
    a.k     = dst->src[1];
    a.v     = dst->src[2];
    a.mask  = dst->src[3];
    a.sinks = dst->src[4];

    float params[3];
    std::memcpy(params, dst->op_params, sizeof(params));
    a.scale    = params[0];
    a.soft_cap = params[2];
    if (params[1] != 0.0f || a.q->type != GGML_TYPE_F32 || a.q->nb[0] != sizeof(float)) {
        return false;
    }
    for (const ggml_tensor * t : {a.k, a.v}) {
        const bool readable = t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float;
        if (!readable || t->nb[0] != ggml_type_size(t->type) || t->ne[0] % 8 != 0 || a.q->ne[2] % t->ne[2] != 0 ||
            a.q->ne[3] % t->ne[3] != 0) {
            return false;
        }
    }
    if (a.v->ne[2] != a.k->ne[2] || a.v->ne[1] != a.k->ne[1] || !ggml_is_contiguous(dst)) {
        return false;
    }
    if (a.mask && (a.mask->type != GGML_TYPE_F16 || a.mask->nb[0] != sizeof(ggml_fp16_t) ||
                   a.mask->ne[0] < a.k->ne[1] || a.mask->ne[1] < a.q->ne[1])) {
        return false;
    }
    a.heads_per_head = a.q->ne[2] / a.k->ne[2];
    return true;
}

// Blocks for the queries of one head of K and V: as large as can be, unless threads would then have unequal shares.
int64_t blocks_per_head(int64_t n_queries, int64_t n_heads, int64_t n_threads) {
    constexpr int64_t kTileCost = 2;  // reading a tile, in queries

    const int64_t least     = (n_queries + kBlockQueries - 1) / kBlockQueries;
    int64_t       best      = least;
    int64_t       best_cost = INT64_MAX;
    for (int64_t n = least; n <= std::min(n_queries, least + n_threads); ++n) {
        const int64_t share = (n_heads * n + n_threads - 1) / n_threads;
        const int64_t cost  = share * ((n_queries + n - 1) / n + kTileCost);
        if (cost < best_cost) {
            best      = n;
            best_cost = cost;
        }
    }
    return best;
}

class Work {
  public:
    Work(const Attention & attention, int64_t n_threads, float * scratch)
        : attention_(attention),
          scratch_(scratch),
          n_queries_(attention.q->ne[1] * attention.heads_per_head),
          n_heads_(attention.k->ne[2] * attention.q->ne[3]),
          n_blocks_(blocks_per_head(n_queries_, n_heads_, n_threads)) {}

    int64_t size() const { return n_heads_ * n_blocks_; }

    void run(int64_t unit) const {
        const int64_t block =
            n_blocks_ - 1 - unit / n_heads_;  // the last rows see most: first, so that none waits for them
        const int64_t  head = unit % n_heads_;
        AttentionBlock b;
        b.sequence = head / attention_.k->ne[2];
        b.kv_head  = head % attention_.k->ne[2];
        b.first    = n_queries_ * block / n_blocks_;
        b.end      = n_queries_ * (block + 1) / n_blocks_;
        attend_avx2(attention_, b, scratch_);
    }

  private:
    const Attention & attention_;
    float *           scratch_;
    int64_t           n_queries_;
    int64_t           n_heads_;
    int64_t           n_blocks_;
};

}  // namespace

}  // namespace pd2

extern "C" {

void __real_ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);

// The linker puts this in the place of ggml_compute_forward_flash_attn_ext. Every thread of the pool calls it.
void __wrap_ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    constexpr size_t kLine = 64;

    pd2::Attention attention;
    const bool     taken   = pd2::is_wanted() && pd2::read(dst, attention);
    const size_t   scratch = taken ? (pd2::attention_avx2_scratch(attention) + kLine - 1) / kLine * kLine : 0;
    if (!taken || params->nth * scratch + kLine > params->wsize) {
        __real_ggml_compute_forward_flash_attn_ext(params, dst);
        return;
    }
    // ggml plans room for its own tiles, which are larger than ours.
    const auto      base = (reinterpret_cast<uintptr_t>(params->wdata) + kLine - 1) / kLine * kLine;
    const pd2::Work work(attention, params->nth, reinterpret_cast<float *>(base + params->ith * scratch));

    if (params->nth == 1 || work.size() < 4 * params->nth) {
        for (int64_t unit = work.size() * params->ith / params->nth;
             unit < work.size() * (params->ith + 1) / params->nth; ++unit) {
            work.run(unit);
        }
        return;
    }
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    for (int64_t unit = params->ith; unit < work.size(); unit = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        work.run(unit);
    }
}
}

#endif
