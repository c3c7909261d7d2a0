#include "streams.h"

#include <algorithm>
#include <limits>
#include <string>

#include "assertions.h"
#include "error.h"
#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-model.h"
#include "llama_streams.h"
#include "log.h"
#include "model_check.h"
#include "product_threads.h"

namespace pd2 {

namespace {

// Tokens of a decode at least: prompts are read in pieces that fill the machine.
constexpr int32_t kMinBatch = 64;

void check(const StreamsOf & target, int32_t n, int32_t size) {
    if (n < 1 || n > LLAMA_MAX_SEQ) {
        fail(PD2_ERROR_ARGUMENT, "%d texts cannot be decoded side by side: give 1 to %d", n, LLAMA_MAX_SEQ);
    }
    if (size < 2 || size > std::numeric_limits<int32_t>::max() / LLAMA_MAX_SEQ) {
        fail(PD2_ERROR_ARGUMENT,
             "texts of %d tokens cannot be decoded: give 2, a prompt of one token and one more, to %d", size,
             std::numeric_limits<int32_t>::max() / LLAMA_MAX_SEQ);
    }
    if (target.model.pos_embd != nullptr && size > target.model.pos_embd->ne[1]) {
        fail(PD2_ERROR_ARGUMENT, "texts of %d tokens, but this target has learned positions for %d only: ask for fewer",
             size, static_cast<int32_t>(target.model.pos_embd->ne[1]));
    }
    // Caches, and logits twice: as the graph computes them, and as llama.cpp hands them out.
    const double bytes = n * (cache_bytes(target.model, target.params.kv_type, size, size) +
                              2.0 * sizeof(float) * llama_vocab_n_tokens(llama_model_get_vocab(&target.model)));
    size_t       free = 0, total = 0;
    ggml_backend_dev_memory(target.devices.back(), &free, &total);
    if (llama_model_n_devices(&target.model) == 0 && total > 0 && bytes > static_cast<double>(total)) {
        fail(PD2_ERROR_MEMORY,
             "%d texts of %d tokens take %.1f GB, this machine has %.1f GB of memory: ask for fewer or shorter ones", n,
             size, bytes / 1e9, static_cast<double>(total) / 1e9);
    }
}

class LlamaStreams : public Streams {
  public:
    LlamaStreams(const StreamsOf & target, int32_t n, int32_t size)
        : n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(&target.model))),
          batch_size_(std::min(std::max({target.batch_size, n, kMinBatch}), n * size)),
          threads_(target.n_threads, Products::fast) {
        llama_context_params params = llama_context_default_params();
        params.n_ctx                = static_cast<uint32_t>(n) * GGML_PAD(static_cast<uint32_t>(size), 256);
        params.n_seq_max            = static_cast<uint32_t>(n);
        params.n_batch              = static_cast<uint32_t>(batch_size_);
        params.n_ubatch             = static_cast<uint32_t>(batch_size_);
        params.n_outputs_max        = static_cast<uint32_t>(n);
        params.n_threads            = target.n_threads;
        params.n_threads_batch      = target.n_threads;
        params.type_k               = target.params.kv_type;
        params.type_v               = target.params.kv_type;
        params.kv_unified           = false;  // a row looks at its own text's cells alone
        params.swa_full             = false;
        if (target.params.kv_type == GGML_TYPE_F32) {
            params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;  // it would round the F32 cache to F16
        }

        log_forget_errors();
        {
            const AssertionGuard guard;
            context_.reset(llama_init_from_model(&target.model, params));
        }
        if (!context_) {
            const std::string assertion = AssertionGuard::failed();
            const std::string reason    = assertion.empty() ? log_reason() : assertion;
            fail(log_status(reason, PD2_ERROR_NATIVE),
                 "caches for %d texts of %d tokens cannot be made: %s. Ask for fewer or shorter texts", n, size,
                 reason.c_str());
        }
        check_graph(context_->get_gf_res_reserve()->get_gf(), target.devices, target.params.path);
        llama_attach_threadpool(context_.get(), threads_.get(), nullptr);
        batch_ = llama_batch_init(batch_size_, 0, 1);
        clear_all();
    }
    LlamaStreams(const LlamaStreams &)             = delete;
    LlamaStreams & operator=(const LlamaStreams &) = delete;
    ~LlamaStreams() override { llama_batch_free(batch_); }

    int32_t batch_size() const override { return batch_size_; }

    void decode(const std::vector<Piece> & pieces, bool with_logits) override {
        batch_.n_tokens = 0;
        for (const Piece & piece : pieces) {
            for (int32_t i = 0; i < piece.n; ++i) {
                const int32_t row     = batch_.n_tokens++;
                batch_.token[row]     = piece.tokens[i];
                batch_.pos[row]       = piece.position + i;
                batch_.n_seq_id[row]  = 1;
                batch_.seq_id[row][0] = piece.stream;
                batch_.logits[row]    = with_logits && i == piece.n - 1;
            }
        }
        log_forget_errors();
        int32_t     code = 0;
        std::string reason;
        try {
            code = llama_decode(context_.get(), batch_);
            llama_synchronize(context_.get());
        } catch (const std::exception & error) {  // reserving buffers may fail; llama.cpp's C interface lets it through
            code   = -2;
            reason = error.what();
        }
        if (code != 0) {
            clear_all();
            reason = reason.empty() ? log_reason() : reason;
            fail(log_status(reason, PD2_ERROR_NATIVE), "llama.cpp failed to decode %d tokens of %zu texts: %s",
                 batch_.n_tokens, pieces.size(), reason.c_str());
        }
        logits_ = with_logits ? llama_get_logits(context_.get()) : nullptr;  // in the batch's order
    }

    const float * logits(size_t piece) const override { return logits_ + piece * static_cast<size_t>(n_vocab_); }

    void clear(int32_t stream) override { llama_memory_seq_rm(llama_get_memory(context_.get()), stream, -1, -1); }

  private:
    void clear_all() { llama_memory_clear(llama_get_memory(context_.get()), false); }

    const int32_t     n_vocab_;
    const int32_t     batch_size_;
    ProductThreads    threads_;  // before the context, which computes with them
    llama_context_ptr context_;
    llama_batch       batch_  = {};
    const float *     logits_ = nullptr;
};

}  // namespace

std::unique_ptr<Streams> make_streams(const StreamsOf & target, int32_t n, int32_t size) {
    check(target, n, size);
    return std::make_unique<LlamaStreams>(target, n, size);
}

}  // namespace pd2
