#include "target.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "assertions.h"
#include "cpu.h"
#include "devices.h"
#include "error.h"
#include "fork.h"
#include "grammar.h"
#include "llama-context.h"
#include "llama-cpp.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "llama_sampler.h"
#include "llama_streams.h"
#include "log.h"
#include "model_check.h"
#include "model_file.h"
#include "product_threads.h"
#include "taps.h"
#include "vocabulary.h"

namespace pd2 {

namespace {

constexpr int32_t kDefaultContext = 8192;

// Rows a decode may ask logits for, at least. llama.cpp reserves n_vocab floats on the device for each.
constexpr int32_t kMinOutputs = 64;

constexpr llama_seq_id kSequence = 0;

// The GPUs that it may run on: chosen, or all there are.
std::vector<ggml_backend_dev_t> gpus_for(const TargetParams & params) {
    return params.devices_chosen ? params.devices : gpus();
}

void check_devices(const TargetParams & params) {
    const auto devices = gpus_for(params);
    if (params.n_gpu_layers > 0 && params.devices_chosen && devices.empty()) {
        fail(PD2_ERROR_ARGUMENT, "device is the CPU, and %d layers were to run on a GPU: leave out one of the two",
             params.n_gpu_layers);
    }
    if (params.n_gpu_layers > 0 && devices.empty()) {
        fail(PD2_ERROR_BACKEND,
             "%d layers were to run on a GPU, but there is none (back ends in this build: %s): set the "
             "number of GPU layers to 0, or install a build with your GPU's back end",
             params.n_gpu_layers, back_ends().c_str());
    }
    if (params.n_gpu_layers == 0 && !params.devices.empty()) {
        fail(PD2_ERROR_ARGUMENT, "%s was asked for, and no layer on it: leave n_gpu_layers out, or give device cpu",
             ggml_backend_dev_name(params.devices.front()));
    }
    if (params.split == PD2_SPLIT_TENSOR || params.split == PD2_SPLIT_ROW) {
        const auto what = params.split == PD2_SPLIT_ROW ? "row" : "tensor";
        if (devices.empty() || params.n_gpu_layers == 0) {
            fail(PD2_ERROR_BACKEND, "split_mode \"%s\" spreads tensors over GPUs, and none is used: leave it out",
                 what);
        }
        for (ggml_backend_dev_t device : devices) {
            ggml_backend_reg_t back_end = ggml_backend_dev_backend_reg(device);
            if (params.split == PD2_SPLIT_ROW &&
                !ggml_backend_reg_get_proc_address(back_end, "ggml_backend_split_buffer_type")) {
                fail(PD2_ERROR_BACKEND, "split_mode \"row\" is not possible on %s: take \"layer\" or \"tensor\"",
                     described(device).c_str());
            }
        }
    }
    if (!params.device_shares.empty() && params.device_shares.size() != devices.size()) {
        fail(PD2_ERROR_ARGUMENT, "tensor_split has %zu shares for %zu devices: give one for each",
             params.device_shares.size(), devices.size());
    }
}

void check_params(const TargetParams & params) {
    if (params.context_size < 0) {
        fail(PD2_ERROR_ARGUMENT, "context_size is %d: give a number of tokens, or 0 for the model's own",
             params.context_size);
    }
    if (params.batch_size < 1) {
        fail(PD2_ERROR_ARGUMENT, "batch_size is %d: give at least 1 token", params.batch_size);
    }
    if (params.n_threads < 0) {
        fail(PD2_ERROR_ARGUMENT, "n_threads is %d: give a number of threads, or 0 for one a physical core",
             params.n_threads);
    }
    if (params.n_threads > GGML_MAX_N_THREADS) {
        fail(PD2_ERROR_ARGUMENT, "n_threads is %d: ggml runs %d at most, give 0 for one a physical core",
             params.n_threads, GGML_MAX_N_THREADS);
    }
    check_devices(params);
}

llama_split_mode split_mode(pd2_split split) {
    switch (split) {
        case PD2_SPLIT_NONE:
            return LLAMA_SPLIT_MODE_NONE;
        case PD2_SPLIT_ROW:
            return LLAMA_SPLIT_MODE_ROW;
        case PD2_SPLIT_TENSOR:
            return LLAMA_SPLIT_MODE_TENSOR;
        case PD2_SPLIT_LAYER:
            break;
    }
    return LLAMA_SPLIT_MODE_LAYER;
}

struct Batch {
    explicit Batch(int32_t capacity) : raw(llama_batch_init(capacity, 0, 1)) {
        for (int32_t i = 0; i < capacity; ++i) {
            raw.n_seq_id[i]  = 1;
            raw.seq_id[i][0] = kSequence;
        }
    }
    Batch(const Batch &)             = delete;
    Batch & operator=(const Batch &) = delete;
    ~Batch() { llama_batch_free(raw); }

    llama_batch raw;
};

class LlamaTarget : public Target {
  public:
    LlamaTarget(const TargetParams & params, const std::string & architecture);

    void open(const std::vector<int32_t> & taps, int32_t max_rollback) override;

    pd2_target_info                 info() const override;
    SharedTensors                   shared() const override;
    std::vector<ggml_backend_dev_t> devices() const override;
    ggml_backend_dev_t              device_for_head() const override;
    bool shares_whole() const override { return params_.split == PD2_SPLIT_LAYER || params_.split == PD2_SPLIT_NONE; }

    int32_t n_threads() const override { return n_threads_; }
    int32_t batch_size() const override { return batch_size_; }
    int32_t most_rows() const override { return max_outputs_; }
    int32_t n_taps() const override { return taps_.size(); }

    std::vector<int32_t> tokenize(const std::string & text, bool add_special, bool parse_special) const override {
        return pd2::tokenize(vocab_, text, add_special, parse_special);
    }
    std::string token_bytes(int32_t token, bool special) const override {
        return pd2::token_bytes(vocab_, token, special);
    }
    bool         is_end(int32_t token) const override { return llama_vocab_is_eog(vocab_, token); }
    const char * chat_template() const override { return llama_model_chat_template(model_.get(), nullptr); }
    void         check_grammar(const std::string & gbnf) const override { pd2::check_grammar(gbnf, vocab_); }

    std::vector<int32_t>     ranked_tokens() const override { return pd2::ranked_tokens(vocab_); }
    std::unique_ptr<Sampler> sampler(const SamplingParams & params) const override {
        return make_sampler(vocab_, params, context_size_);
    }
    std::unique_ptr<Streams> streams(int32_t n, int32_t size) const override {
        return make_streams({*model_, params_, devices(), n_threads_, batch_size_}, n, size);
    }

    void decode(const int32_t * tokens, int32_t n, int32_t position, Logits logits, bool with_features) override;

    const float * logits(int32_t row) const override { return logits_ + static_cast<size_t>(row) * n_vocab_; }
    int32_t       n_logits() const override { return n_logits_; }
    const float * features() const override { return taps_.features(); }
    int32_t       n_features() const override { return taps_.n_rows(); }

    bool    truncate(int32_t position) override;
    void    clear() override;
    int32_t end() const override { return end_; }

  private:
    void check_model() const;
    void check_memory() const;
    void refuse_assertion() const;
    void treat_rows_alike();
    void create_context(int32_t max_rollback, bool with_callback);
    void check_decode(const int32_t * tokens, int32_t n, int32_t position, Logits logits) const;
    void recover(int32_t position);
    bool holds(int32_t position) const;

    llama_memory_t memory() const { return llama_get_memory(context_.get()); }

    TargetParams        params_;
    std::string         architecture_;
    llama_model_ptr     model_;
    const llama_vocab * vocab_        = nullptr;
    int32_t             n_vocab_      = 0;
    int32_t             n_threads_    = 0;
    int32_t             batch_size_   = 0;
    int32_t             context_size_ = 0;
    int32_t             max_outputs_  = 0;
    bool                has_states_   = false;  // memory that cannot drop tokens but by snapshots

    std::unique_ptr<ProductThreads> threads_;  // before the context, which computes with them

    Taps                   taps_;  // before the context, which holds a pointer to it
    llama_context_ptr      context_;
    std::unique_ptr<Batch> batch_;
    const float *          logits_   = nullptr;
    int32_t                n_logits_ = 0;

    int32_t end_         = 0;      // positions 0 .. end - 1 have been decoded
    int32_t last_rows_   = 0;      // rows of the last decode: as many states have snapshots
    bool    rolled_back_ = false;  // llama.cpp goes back to a snapshot once between two decodes
};

LlamaTarget::LlamaTarget(const TargetParams & params, const std::string & architecture)
    : params_(params), architecture_(architecture) {
    check_params(params);
    n_threads_ = params.n_threads > 0 ? params.n_threads : physical_cores();

    auto       devices = params.devices_chosen || params.split != PD2_SPLIT_TENSOR ? params.devices : gpus();
    const bool chosen  = params.devices_chosen || !devices.empty() ||
                        params.n_gpu_layers == 0;  // else llama.cpp still sends large batches to a GPU
    devices.push_back(nullptr);
    std::vector<float> shares(params.device_shares);
    shares.resize(llama_max_devices());

    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers       = params.n_gpu_layers;
    model_params.load_mode          = params.use_mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    model_params.use_extra_bufts    = !params.batch_invariant;  // repacked weights have kernels of their own for 4 rows
    model_params.split_mode         = split_mode(params.split);
    model_params.devices            = chosen ? devices.data() : nullptr;
    model_params.tensor_split       = params.device_shares.empty() ? nullptr : shares.data();

    log_forget_errors();
    {
        const AssertionGuard guard;
        model_.reset(llama_model_load_from_file(params.path.c_str(), model_params));
    }
    if (!model_) {
        refuse_assertion();
        const std::string reason = log_reason();
        fail(log_status(reason, PD2_ERROR_MODEL_FILE),
             "llama.cpp cannot load the target '%s': %s. Check that the file is whole and that this build's llama.cpp "
             "knows the model",
             params.path.c_str(), reason.c_str());
    }
    vocab_      = llama_model_get_vocab(model_.get());
    n_vocab_    = llama_vocab_n_tokens(vocab_);
    has_states_ = llama_model_is_recurrent(model_.get()) || llama_model_is_hybrid(model_.get()) ||
                  llm_arch_supports_rs_rollback(model_->arch);
    check_model();

    const int32_t trained = llama_model_n_ctx_train(model_.get());
    context_size_         = params.context_size > 0 ? params.context_size
                                                    : std::min(trained > 0 ? trained : kDefaultContext, kDefaultContext);
    if (model_->pos_embd != nullptr && context_size_ > model_->pos_embd->ne[1]) {
        fail(PD2_ERROR_ARGUMENT,
             "context_size is %d, but this target has learned positions for %d tokens only: ask for no more",
             context_size_, static_cast<int32_t>(model_->pos_embd->ne[1]));
    }
    batch_size_ = std::min(params.batch_size, context_size_);
}

// What made llama.cpp give up may have been an assertion: then the file holds what no converter writes.
void LlamaTarget::refuse_assertion() const {
    if (!AssertionGuard::failed().empty()) {
        fail(PD2_ERROR_MODEL_FILE,
             "llama.cpp cannot run the target '%s': its values do not fit together (%s). Download or convert it again",
             params_.path.c_str(), AssertionGuard::failed().c_str());
    }
}

void LlamaTarget::check_model() const {
    const char * path = params_.path.c_str();
    if (llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE || n_vocab_ <= 0) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' carries no tokenizer: convert it again with its tokenizer files beside it", path);
    }
    if (llama_model_has_encoder(model_.get()) || llama_model_is_diffusion(model_.get()) ||
        !model_->hparams.causal_attn || model_->output == nullptr) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' (architecture %s) does not generate text from left to right: encoders, "
             "encoder-decoders, embedding and diffusion models cannot be targets. Give a model that generates text",
             path, architecture_.c_str());
    }
    check_vocabulary(vocab_, params_.path);
}

// Linux grants any amount of memory and ends the process when it is used. (A GPU's allocation fails properly.)
void LlamaTarget::check_memory() const {
    const llama_hparams & hparams  = model_->hparams;
    const int32_t         windowed = hparams.n_swa > 0 && !params_.batch_invariant
                                         ? std::min(context_size_, static_cast<int32_t>(hparams.n_swa) + batch_size_)
                                         : context_size_;
    const double          bytes    = cache_bytes(*model_, params_.kv_type, context_size_, windowed);
    size_t                free = 0, total = 0;
    ggml_backend_dev_memory(devices().back(), &free, &total);
    const bool on_cpu = llama_model_n_devices(model_.get()) == 0;
    if (on_cpu && total > 0 && bytes > static_cast<double>(total)) {
        fail(PD2_ERROR_MEMORY,
             "a context of %d tokens takes a cache of %.1f GB, this machine has %.1f GB of memory: ask for a smaller "
             "context_size",
             context_size_, bytes / 1e9, static_cast<double>(total) / 1e9);
    }
}

void LlamaTarget::create_context(int32_t max_rollback, bool with_callback) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = context_size_;
    params.n_batch              = batch_size_;
    params.n_ubatch             = batch_size_;  // one decode, one graph: features keep the batch's order
    params.n_outputs_max        = max_outputs_;
    params.n_rs_seq             = has_states_ ? max_rollback : 0;
    params.n_threads            = n_threads_;
    params.n_threads_batch      = n_threads_;
    params.type_k               = params_.kv_type;
    params.type_v               = params_.kv_type;
    if (params_.kv_type == GGML_TYPE_F32) {
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;  // it would round the F32 cache to F16
    }
    // Windowed layers put a token where another has left: sums would go in another order after drafts were taken back.
    params.swa_full = params_.batch_invariant;
    if (with_callback) {
        // Of a tensor that is spread over devices it would see a part, or memory it may not read.
        if (params_.split == PD2_SPLIT_TENSOR) {
            fail(PD2_ERROR_HEAD_MISMATCH,
                 "the layers this head reads are taken from the graph of a target of architecture %s as it is "
                 "computed, which cannot be done with split_mode \"tensor\": give split_mode \"layer\"",
                 architecture_.c_str());
        }
        params.cb_eval           = Taps::on_node;
        params.cb_eval_user_data = &taps_;
    }

    check_memory();
    context_.reset();  // two at once might not fit
    log_forget_errors();
    {
        const AssertionGuard guard;
        context_.reset(llama_init_from_model(model_.get(), params));
    }
    if (!context_) {
        refuse_assertion();
        const std::string reason = log_reason();
        fail(log_status(reason, PD2_ERROR_NATIVE),
             "a context of %d tokens with a cache of type %s cannot be made: %s. Ask for a smaller context_size or the "
             "cache type f16",
             context_size_, ggml_type_name(params_.kv_type), reason.c_str());
    }
    check_graph(context_->get_gf_res_reserve()->get_gf(), devices(), params_.path);
    treat_rows_alike();
    if (params_.batch_invariant) {
        if (!threads_) {
            threads_ = std::make_unique<ProductThreads>(n_threads_, Products::alike);
        }
        llama_attach_threadpool(context_.get(), threads_->get(), nullptr);
    }
    if (memory() == nullptr) {
        fail(PD2_ERROR_MODEL_FILE, "the target '%s' (architecture %s) has no cache, so it cannot generate text",
             params_.path.c_str(), architecture_.c_str());
    }
}

// ggml's own kernels for K-quants and, where attention.cpp does not take its place, its flash attention have one path for few rows
// and one for many; logits move by a tenth with the draft's width. The reference paths take every row alike.
void LlamaTarget::treat_rows_alike() {
    ggml_backend_sched_t sched = context_->get_sched();
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t     backend = ggml_backend_sched_get_backend(sched, i);
        ggml_backend_reg_t reg     = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
        if (!reg) {
            continue;  // several devices as one
        }
        auto set = reinterpret_cast<void (*)(ggml_backend_t, bool)>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_cpu_set_use_ref"));
        if (set) {
            set(backend, true);
        }
    }
}

void LlamaTarget::open(const std::vector<int32_t> & taps, int32_t max_rollback) {
    taps_ = Taps(taps, llama_model_n_layer(model_.get()), llama_model_n_embd(model_.get()));

    if (has_states_) {
        batch_size_ =
            std::max(batch_size_, max_rollback + 2);  // llama.cpp asserts that the snapshots fit into one batch
    }
    if (batch_size_ > context_size_) {
        fail(PD2_ERROR_ARGUMENT,
             "context_size is %d, but drafting %d tokens with this target takes at least %d: ask for more",
             context_size_, max_rollback, batch_size_);
    }
    max_outputs_ =
        taps_.need_every_output() ? batch_size_ : std::min(batch_size_, std::max(kMinOutputs, max_rollback + 1));

    // llama.cpp takes the callback with the context only, and it costs a synchronisation in every part of the graph:
    // made without it first, as most targets that heads exist for are wired.
    bool callback = params_.taps_mode == PD2_TAPS_CALLBACK || taps_.need_every_output();
    create_context(max_rollback, callback && !taps_.empty());
    if (!taps_.empty()) {
        if (params_.taps_mode != PD2_TAPS_CALLBACK && !taps_.wire(context_.get(), architecture_, batch_size_)) {
            if (params_.taps_mode == PD2_TAPS_WIRED) {
                fail(PD2_ERROR_ARGUMENT,
                     "wired taps were asked for, but llama.cpp's graph for %s does not hand out these layers: "
                     "leave the choice of taps automatic",
                     architecture_.c_str());
            }
            if (!callback) {
                create_context(max_rollback, true);
            }
            callback = true;
        }
        const std::string obstacle = callback ? taps_.obstacle(context_.get(), batch_size_) : "";
        if (!obstacle.empty()) {
            fail(PD2_ERROR_HEAD_MISMATCH,
                 "the layers this head reads cannot be read from a target of architecture %s: %s. Run the "
                 "target without a head",
                 architecture_.c_str(), obstacle.c_str());
        }
    }
    batch_ = std::make_unique<Batch>(batch_size_);
    clear();
}

pd2_target_info LlamaTarget::info() const {
    pd2_target_info info = {};
    std::snprintf(info.architecture, sizeof(info.architecture), "%s", architecture_.c_str());
    llama_model_desc(model_.get(), info.description, sizeof(info.description));

    std::string names;
    for (ggml_backend_dev_t device : devices()) {
        names += (names.empty() ? "" : ", ") + std::string(ggml_backend_dev_name(device));
    }
    std::snprintf(info.devices, sizeof(info.devices), "%s", names.c_str());

    info.n_vocab         = n_vocab_;
    info.n_embd          = llama_model_n_embd(model_.get());
    info.n_layer         = llama_model_n_layer(model_.get());
    info.context_size    = context_size_;
    info.context_trained = llama_model_n_ctx_train(model_.get());
    info.n_threads       = n_threads_;
    info.n_params        = llama_model_n_params(model_.get());
    info.weight_bytes    = llama_model_size(model_.get());
    info.has_encoder     = llama_model_has_encoder(model_.get());
    info.is_recurrent    = has_states_;
    info.rollback_limit  = !has_states_ ? -1 : context_ ? static_cast<int32_t>(llama_n_rs_seq(context_.get())) : 0;
    info.taps_wired      = taps_.wired();
    return info;
}

SharedTensors LlamaTarget::shared() const {
    return {model_->tok_embd, model_->output, model_->output_s, model_->output_b};
}

std::vector<ggml_backend_dev_t> LlamaTarget::devices() const {
    std::vector<ggml_backend_dev_t> devices;
    for (int32_t i = 0; i < llama_model_n_devices(model_.get()); ++i) {
        devices.push_back(llama_model_get_device(model_.get(), i));
    }
    devices.push_back(cpu_device());
    return devices;
}

ggml_backend_dev_t LlamaTarget::device_for_head() const {
    const auto here = [](ggml_backend_dev_t device) { return device && is_gpu(device) && !is_remote(device); };

    ggml_backend_buffer_t output = model_->output->buffer;
    ggml_backend_dev_t beside = output ? ggml_backend_buft_get_device(ggml_backend_buffer_get_type(output)) : nullptr;
    if (here(beside)) {
        return beside;
    }
    auto used = devices();
    if (is_split(used.front())) {
        used = gpus_for(params_);
    }
    const auto last = std::find_if(used.rbegin(), used.rend(), here);
    return last != used.rend() ? *last : cpu_device();
}

void LlamaTarget::check_decode(const int32_t * tokens, int32_t n, int32_t position, Logits logits) const {
    if (n < 1 || n > batch_size_) {
        fail(PD2_ERROR_ARGUMENT, "%d tokens cannot be decoded at once: give 1 to %d", n, batch_size_);
    }
    if (logits == Logits::all && n > max_outputs_) {
        fail(PD2_ERROR_ARGUMENT,
             "%d rows are to be judged at once, but this engine has room for %d: give a shorter draft", n,
             max_outputs_);
    }
    if (position != end_) {
        fail(PD2_ERROR_ARGUMENT, "decoding at position %d, but the cache ends at %d: truncate it first", position,
             end_);
    }
    if (n > context_size_ - position) {
        fail(PD2_ERROR_CONTEXT_OVERFLOW,
             "%d tokens are in the context and %d more do not fit into its %d: shorten the text or load "
             "with a larger context_size",
             position, n, context_size_);
    }
    for (int32_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab_) {
            fail(PD2_ERROR_ARGUMENT, "token %d does not exist: the target's vocabulary has ids 0 to %d", tokens[i],
                 n_vocab_ - 1);
        }
    }
}

void LlamaTarget::decode(const int32_t * tokens, int32_t n, int32_t position, Logits logits, bool with_features) {
    check_decode(tokens, n, position, logits);

    const bool    every_row = logits == Logits::all || (with_features && taps_.need_every_output());
    llama_batch & batch     = batch_->raw;
    batch.n_tokens          = n;
    for (int32_t i = 0; i < n; ++i) {
        batch.token[i]  = tokens[i];
        batch.pos[i]    = position + i;  // llama.cpp repeats it for each section of a multimodal rope
        batch.logits[i] = every_row || (logits == Logits::last && i == n - 1);
    }

    n_logits_ = 0;
    taps_.begin(with_features, n);
    log_forget_errors();

    int32_t     code = 0;
    std::string thrown;
    try {
        code = llama_decode(context_.get(), batch);
        llama_synchronize(context_.get());
    } catch (const std::exception & error) {  // reserving buffers may fail; llama.cpp's C interface lets it through
        code   = -2;
        thrown = error.what();
    }
    if (code != 0) {
        taps_.begin(false, 0);
        if (code == 1) {  // found before anything was computed
            fail(PD2_ERROR_CONTEXT_OVERFLOW,
                 "the cache has no room for %d tokens after %d (context_size %d): shorten the text or "
                 "load with a larger context_size",
                 n, position, context_size_);
        }
        recover(position);
        const std::string reason = thrown.empty() ? log_reason() : thrown;
        fail(log_status(reason, PD2_ERROR_NATIVE), "llama.cpp failed to decode %d tokens at position %d: %s", n,
             position, reason.c_str());
    }

    end_         = position + n;
    last_rows_   = n;
    rolled_back_ = false;
    if (logits != Logits::none) {
        n_logits_ = logits == Logits::all ? n : 1;
        logits_   = llama_get_logits(context_.get());  // [rows with logits, n_vocab], in the batch's order
        if (logits == Logits::last && every_row) {
            logits_ += static_cast<size_t>(n - 1) * n_vocab_;
        }
    }
    taps_.end(context_.get());
}

// After a failure in mid-graph the states and cells of these rows are undefined.
void LlamaTarget::recover(int32_t position) {
    if (has_states_ || !llama_memory_seq_rm(memory(), kSequence, position, -1)) {
        clear();
    }
}

bool LlamaTarget::holds(int32_t position) const {
    if (position <= 0 || position >= end_) {
        return position == 0 || position == end_;
    }
    if (has_states_) {
        // llama.cpp would also go back to snapshots that the last decode was too short to write
        const auto kept = std::min(static_cast<int32_t>(llama_n_rs_seq(context_.get())), last_rows_ - 1);
        return !rolled_back_ && end_ - position <= kept;
    }
    const auto window = static_cast<int32_t>(model_->hparams.n_swa);
    if (window == 0) {
        return true;
    }
    // Windowed layers overwrite what the newest token no longer sees; a token at `position` sees further back.
    const bool    chunked = model_->hparams.swa_type == LLAMA_SWA_TYPE_CHUNKED;
    const int32_t first   = chunked ? position / window * window : std::max(0, position - window + 1);
    return llama_memory_seq_pos_min(memory(), kSequence) <= first;
}

bool LlamaTarget::truncate(int32_t position) {
    if (position == 0) {
        clear();
        return true;
    }
    if (position == end_ || !holds(position)) {
        return position == end_;
    }
    if (!llama_memory_seq_rm(memory(), kSequence, position, -1)) {
        return false;
    }
    rolled_back_ = has_states_;
    end_         = position;
    return true;
}

void LlamaTarget::clear() {
    llama_memory_clear(memory(), false);
    end_         = 0;
    last_rows_   = 0;
    rolled_back_ = false;
}

}  // namespace

std::unique_ptr<Target> Target::load(const TargetParams & params) {
    static std::once_flag once;
    std::call_once(once, [] {
        log_install();
        fork_install();
        llama_backend_init();
    });
    fork_check();
    return std::make_unique<LlamaTarget>(params, check_target_file(params.path));
}

}  // namespace pd2
