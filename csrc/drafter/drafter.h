// A head: its parameters and tensors, its graphs, its windowed K/V cache. Knows ggml, nothing of llama.cpp's models:
// embeddings, output head and features are given to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "pydflash2.h"

namespace pd2 {

// What the file says. Read without touching the weights, so that a pair can be checked before anything is loaded.
struct HeadParams {
    int32_t version         = 2;
    int32_t block_size      = 0;
    int32_t n_layer         = 0;
    int32_t n_embd          = 0;
    int32_t n_ff            = 0;
    int32_t n_head          = 0;
    int32_t n_head_kv       = 0;
    int32_t head_dim        = 0;
    int32_t n_rot           = 0;  // dimensions rotated, of head_dim
    int32_t n_vocab         = 0;  // 0: the file does not say
    int32_t n_draft_vocab   = 0;  // rows of the own output head, 0: borrowed
    int32_t mask_token      = -1;
    int32_t window          = 0;
    int32_t causal          = -1;  // 0, 1, -1: absent
    int32_t conv_kernel     = 0;
    int32_t conv_group      = 0;
    int32_t rank            = 0;
    int32_t top_k           = 0;
    int32_t n_feature       = 0;  // width of one position's features, fc's input
    float   rms_eps         = 0;
    float   rope_base       = 0;
    float   rope_scale      = 1;  // 1 / factor
    float   yarn_ext_factor = 0, yarn_attn_factor = 1, yarn_beta_fast = 32, yarn_beta_slow = 1;
    int32_t rope_context          = 0;
    int32_t rope_sections[4]      = {0, 0, 0, 0};
    bool    mrope                 = false;
    float   embedding_scale       = 1;
    float   logit_scale           = 1;
    float   soft_cap              = 0;  // 0: none
    float   attention_scale       = 0;  // 0: 1 / sqrt(head_dim)
    float   attention_value_scale = 0;  // 0: none
    bool    gelu                  = false;
    bool    own_embedding         = false;
    bool    own_output            = false;

    std::vector<int32_t> taps;             // layer outputs
    std::vector<bool>    sliding;          // [n_layer]
    std::vector<bool>    causal_by_layer;  // [n_layer], what holds where causal is absent

    int32_t n_sliding() const;
    bool    is_causal(int32_t layer) const;  // absent key: sliding layers are, full ones are not (the reference's rule)
};

struct DrafterParams {
    std::string path;
    int32_t     context_size = 0;  // positions a full layer must hold
    int32_t     batch_size   = 0;  // rows of the largest inject
    int32_t     n_threads    = 1;
    ggml_type   kv_type      = GGML_TYPE_F16;

    std::vector<ggml_backend_dev_t> devices;  // preferred first, a CPU last; that one alone where it is the preferred

    // Lent tables are read where they lie if the first device can, else copied from the target's file.
    bool may_borrow = true;

    // The target's file, and its tokens, those that texts need most first: asked for where there is a draft vocabulary.
    std::string                           target_path;
    std::function<std::vector<int32_t>()> ranked_tokens;
    int32_t draft_vocabulary = 0;  // tokens; 0: chosen by the size of the vocabulary, -1: all

    // Lent by the target where the head has none of its own; must outlive the drafter.
    ggml_tensor * token_embd   = nullptr;
    ggml_tensor * output       = nullptr;
    ggml_tensor * output_scale = nullptr;
    ggml_tensor * output_bias  = nullptr;
};

// Scores of one block, greedy path not yet walked. Sizes as in pd2_draft.
struct Lattice {
    int32_t              n = 0;
    int32_t              k = 0;
    std::vector<int32_t> candidates;  // [n, k]
    std::vector<float>   unary;       // [n, k]
    std::vector<float>   scores;      // [n, k, k]
};

struct TensorPlace {
    std::string        name;
    ggml_type          type;
    ggml_backend_dev_t device;
    uint64_t           bytes;
    bool               borrowed;
};

struct OperationPlace {
    ggml_op            op;
    ggml_backend_dev_t device;
    int32_t            n;
};

class Drafter {
  public:
    static HeadParams               read(const std::string & path);
    static std::unique_ptr<Drafter> load(const DrafterParams & params);

    virtual ~Drafter() = default;

    virtual const HeadParams & params() const           = 0;
    virtual uint64_t           weight_bytes() const     = 0;  // draft vocabulary included
    virtual uint64_t           vocabulary_bytes() const = 0;
    virtual uint64_t           cache_bytes() const      = 0;
    virtual uint64_t           cache_per_token() const  = 0;  // bytes, of layers without a window
    virtual uint64_t           compute_bytes() const    = 0;
    virtual int32_t            n_candidates() const     = 0;  // tokens that drafts are chosen from
    virtual int32_t            n_nodes() const          = 0;  // operations of a whole round's graph
    virtual int32_t            n_splits() const         = 0;  // its parts that run on one device each
    virtual ggml_backend_dev_t device() const           = 0;  // the preferred one

    virtual std::vector<TensorPlace>            tensors() const    = 0;
    virtual const std::vector<OperationPlace> & operations() const = 0;  // of a whole round's graph

    // Takes the features [n, n_feature] of positions position .. position + n - 1. Those of a few positions wait for the next
    // draft, whose graph writes them into the cache.
    virtual void inject(const float * features, int32_t n, int32_t position) = 0;

    // A new text has these tokens, or the text has these more; see DraftVocabulary.
    virtual void begin_text(const int32_t * tokens, int32_t n) = 0;
    virtual void read_text(const int32_t * tokens, int32_t n)  = 0;

    // One block: anchor at `position`, then `width` mask rows. Needs missing_from(position) == position. What a block
    // at a later position can see is unchanged.
    virtual void draft(int32_t anchor, int32_t position, int32_t width, Lattice & lattice) = 0;

    // The first position that a block at `position` or later can see.
    virtual int32_t first_visible(int32_t position) const = 0;

    // The first position that must be injected (again), in order up to `position`, before a block can start there;
    // `position` itself when nothing is missing. Windows forget, so this may lie behind end().
    virtual int32_t missing_from(int32_t position) const = 0;

    // Committed positions are 0 .. end() - 1.
    virtual int32_t end() const                = 0;
    virtual void    truncate(int32_t position) = 0;  // forget positions >= position
    virtual void    clear()                    = 0;
};

}  // namespace pd2
