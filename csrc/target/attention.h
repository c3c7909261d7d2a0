// Attention of the CPU back end that treats a row alike however many it is decoded with.
//
// attention.cpp stands in for ggml's flash attention and shares the work out; attention_avx2.cpp does it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"

namespace pd2 {

constexpr int64_t kTileCells    = 64;  // cells whose scores are looked at together
constexpr int64_t kBlockQueries = 48;  // queries that share a tile's keys and values, at most

// One call. A query is a row of one head; those of one head of K and V are numbered row by row, so that a block of them has few
// rows and looks at few cells that only some of its rows may see.
struct Attention {
    const ggml_tensor * q     = nullptr;  // F32 [dk, n_rows, n_heads, n_sequences]
    const ggml_tensor * k     = nullptr;  // [dk, n_cells, n_kv_heads, ..]
    const ggml_tensor * v     = nullptr;  // [dv, n_cells, n_kv_heads, ..]
    const ggml_tensor * mask  = nullptr;  // F16 [n_cells, n_rows, ..], added to the scores; or none
    const ggml_tensor * sinks = nullptr;  // F32 [n_heads], a score of no cell; or none
    ggml_tensor *       dst   = nullptr;  // F32 [dv, n_heads, n_rows, n_sequences]

    float   scale          = 1.0f;
    float   soft_cap       = 0.0f;  // scores become soft_cap * tanh(score / soft_cap); 0: they do not
    int64_t heads_per_head = 1;     // heads of Q that share one of K and V
};

// Queries `first` .. `end` - 1, at most kBlockQueries, of one head of K and V.
struct AttentionBlock {
    int64_t sequence;
    int64_t kv_head;
    int64_t first;
    int64_t end;
};

#ifdef __x86_64__
bool   has_attention_avx2();                                 // does this CPU have the instructions
size_t attention_avx2_scratch(const Attention & attention);  // bytes that a thread needs

// `scratch` is aligned to 64 bytes. The bits of a query's result depend on what it sees alone: not on the block it is in.
void attend_avx2(const Attention & attention, const AttentionBlock & block, float * scratch);
#endif

}  // namespace pd2
