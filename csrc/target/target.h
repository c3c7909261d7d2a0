// The target model, run by llama.cpp. The only room of csrc/ that knows llama.cpp's headers: nothing of them shows here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "pydflash2.h"
#include "sampler.h"
#include "streams.h"

namespace pd2 {

struct TargetParams {
    std::string path;
    int32_t     context_size = 0;    // tokens, 0: min(trained, 8192)
    int32_t     batch_size   = 512;  // rows of the largest decode
    int32_t     n_threads    = 0;    // 0: one a physical core
    int32_t     n_gpu_layers = -1;
    pd2_split   split        = PD2_SPLIT_LAYER;

    // Devices of the weights, none for the CPU; not chosen: every GPU.
    bool                            devices_chosen = false;
    std::vector<ggml_backend_dev_t> devices;
    std::vector<float>              device_shares;  // of the weights, as many as devices; empty: by their free memory

    ggml_type kv_type   = GGML_TYPE_F16;
    bool      use_mmap  = true;
    pd2_taps  taps_mode = PD2_TAPS_AUTO;

    bool batch_invariant = false;  // a row's bits do not depend on how many are decoded with it, as far as possible
};

// Tensors of the target that a head may borrow. They live as long as the target.
struct SharedTensors {
    ggml_tensor * token_embd   = nullptr;  // [n_embd, n_vocab]
    ggml_tensor * output       = nullptr;  // [n_embd, n_vocab]; the embedding itself when tied
    ggml_tensor * output_scale = nullptr;  // [1] or absent
    ggml_tensor * output_bias  = nullptr;  // [n_vocab] or absent
};

class Target {
  public:
    // Two steps, so that a head can be checked against the model before its context is built:
    // load reads weights and vocabulary, open creates the context with taps.
    static std::unique_ptr<Target> load(const TargetParams & params);
    virtual void                   open(const std::vector<int32_t> & taps, int32_t max_rollback) = 0;

    virtual ~Target() = default;

    virtual pd2_target_info info() const   = 0;
    virtual SharedTensors   shared() const = 0;

    // Devices that hold the weights, GPU first, the CPU last.
    virtual std::vector<ggml_backend_dev_t> devices() const = 0;

    // Where a head is best placed: on the device of the output table, which it reads the most of; where that table is on another
    // machine or spread over several devices, on the last GPU of this one, else on the CPU.
    virtual ggml_backend_dev_t device_for_head() const = 0;

    // Whether the shared tensors lie whole on one device.
    virtual bool shares_whole() const = 0;

    virtual int32_t n_threads() const  = 0;
    virtual int32_t batch_size() const = 0;
    virtual int32_t most_rows() const  = 0;  // with Logits::all
    virtual int32_t n_taps() const     = 0;

    // ---- vocabulary ----
    virtual std::vector<int32_t> tokenize(const std::string & text, bool add_special, bool parse_special) const = 0;
    virtual std::string          token_bytes(int32_t token, bool special) const                                 = 0;
    virtual bool                 is_end(int32_t token) const                                                    = 0;
    virtual const char *         chat_template() const                                                          = 0;
    virtual void                 check_grammar(const std::string & gbnf) const                                  = 0;

    // All token ids, those that texts need most first, as far as a tokenizer tells: control tokens, then in the order of
    // merges (a BPE's ids) or of scores.
    virtual std::vector<int32_t> ranked_tokens() const = 0;

    // Throws PD2_ERROR_ARGUMENT for parameters out of range.
    virtual std::unique_ptr<Sampler> sampler(const SamplingParams & params) const = 0;

    // Caches of their own for `n` texts of up to `size` tokens each, beside sequence 0. Must not outlive the target.
    virtual std::unique_ptr<Streams> streams(int32_t n, int32_t size) const = 0;

    // ---- decoding, sequence 0 ----
    enum class Logits { none, last, all };

    // Decodes n <= batch_size tokens at positions position .. position + n - 1; position is where the memory ends. Throws
    // Error on failure. With Logits::all n <= most_rows().
    // with_features: taps are copied for these rows, else not.
    virtual void decode(const int32_t * tokens, int32_t n, int32_t position, Logits logits, bool with_features) = 0;

    // Of the last decode: rows with logits [n_rows, n_vocab]; features of all its rows [n, n_taps * n_embd].
    virtual const float * logits(int32_t row) const = 0;
    virtual int32_t       n_logits() const          = 0;
    virtual const float * features() const          = 0;
    virtual int32_t       n_features() const        = 0;

    // Positions 0 .. end() - 1 are in the cache. A decode that throws leaves it as it was, or empty.
    virtual int32_t end() const = 0;

    // Forgets positions >= position. False when the target's memory cannot (recurrent states, windows already
    // overwritten); the memory is then unchanged. A later clear() always works.
    virtual bool truncate(int32_t position) = 0;
    virtual void clear()                    = 0;
};

}  // namespace pd2
