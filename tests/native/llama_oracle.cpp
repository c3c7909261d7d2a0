// llama.cpp's own DFlash drafter on one block, as an oracle for ours: loads target and head, decodes a prompt with the
// target, hands its features to the head, drafts one block after the target's greedy choice, and prints it as JSON.
//
//     llama_oracle TARGET.gguf HEAD.gguf WIDTH ID...
//
// Everything is F32 and without flash attention, which would round the caches to F16.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "llama-ext.h"
#include "llama.h"

namespace {

struct Free {
    void operator()(llama_model * model) const { llama_model_free(model); }
    void operator()(llama_context * context) const { llama_free(context); }
    void operator()(llama_batch_ext * batch) const { llama_batch_ext_free(batch); }
};
using Model   = std::unique_ptr<llama_model, Free>;
using Context = std::unique_ptr<llama_context, Free>;
using Batch   = std::unique_ptr<llama_batch_ext, Free>;

[[noreturn]] void die(const char * what) {
    std::fprintf(stderr, "llama_oracle: %s\n", what);
    std::exit(1);
}

Model load(const char * path) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers       = 0;
    Model model(llama_model_load_from_file(path, params));
    if (!model) {
        die(path);
    }
    return model;
}

Context open(llama_model * model, llama_context * other) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = 512;
    params.n_batch              = 512;
    params.n_ubatch             = 512;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    params.type_k               = GGML_TYPE_F32;
    params.type_v               = GGML_TYPE_F32;
    params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.ctx_other            = other;
    Context context(llama_init_from_model(model, params));
    if (!context) {
        die("no context");
    }
    return context;
}

std::string metadata(const llama_model * model, const char * key) {
    char value[32] = {};
    return llama_model_meta_val_str(model, key, value, sizeof(value)) >= 0 ? value : "";
}

void add_token(llama_batch_ext * batch, llama_token token, llama_pos position, bool output) {
    const int32_t index = llama_batch_ext_add_token(batch, 0, token);
    if (index < 0 || !llama_batch_ext_set_pos(batch, index, &position)) {
        die("a token does not fit the batch");
    }
    llama_batch_ext_set_output_logits(batch, index, output);
}

void decode(llama_context * context, llama_batch_ext * batch) {
    if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch) != 0) {
        die("a decode failed");
    }
}

int32_t best(const float * logits, int32_t n) {
    return static_cast<int32_t>(std::max_element(logits, logits + n) - logits);
}

// Decodes the prompt, returns the target's choice after it and the features [n_prompt, n_taps * n_embd].
llama_token prefill(llama_context * target, const llama_model * head, const std::vector<llama_token> & prompt,
                    std::vector<float> & features) {
    const int32_t * taps   = llama_model_target_layer_ids(head);
    const size_t    n_taps = llama_model_target_layer_ids_n(head);
    const size_t    n_embd = llama_model_n_embd(llama_get_model(target));
    for (size_t tap = 0; tap < n_taps; ++tap) {
        llama_set_embeddings_layer_inp(target, taps[tap], true);
    }
    Batch batch(llama_batch_ext_init(target));
    for (size_t i = 0; i < prompt.size(); ++i) {
        add_token(batch.get(), prompt[i], static_cast<llama_pos>(i), i + 1 == prompt.size());
    }
    decode(target, batch.get());

    features.resize(prompt.size() * n_taps * n_embd);
    for (size_t tap = 0; tap < n_taps; ++tap) {
        const float * rows = llama_get_embeddings_layer_inp(target, taps[tap]);
        if (!rows) {
            die("the target's graph hands out no taps");
        }
        for (size_t i = 0; i < prompt.size(); ++i) {
            std::memcpy(&features[(i * n_taps + tap) * n_embd], rows + i * n_embd, n_embd * sizeof(float));
        }
    }
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(target)));
    return best(llama_get_logits_ith(target, -1), n_vocab);
}

void inject(llama_context * drafter, const std::vector<float> & features, size_t n) {
    Batch batch(llama_batch_ext_init(drafter));
    for (size_t i = 0; i < n; ++i) {
        const size_t     width       = features.size() / n;
        const llama_pos  position    = static_cast<llama_pos>(i);
        const llama_pos  positions[] = {position, position, position, 0};  // the last three for M-RoPE only
        const llama_embd row         = {&features[i * width], 1, width};
        const int32_t    index       = llama_batch_ext_add_embd(batch.get(), 0, row);
        if (index < 0 || !llama_batch_ext_set_pos(batch.get(), index, positions)) {
            die("a feature row does not fit the batch");
        }
        llama_batch_ext_set_output_logits(batch.get(), index, false);
    }
    decode(drafter, batch.get());
}

void print_numbers(const float * values, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        std::printf("%s%.9g", i ? "," : "", static_cast<double>(values[i]));
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 5) {
        die("usage: llama_oracle TARGET.gguf HEAD.gguf WIDTH ID...");
    }
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_ERROR) {
                std::fputs(text, stderr);
            }
        },
        nullptr);
    const int32_t            width = std::atoi(argv[3]);
    std::vector<llama_token> prompt;
    for (int i = 4; i < argc; ++i) {
        prompt.push_back(std::atoi(argv[i]));
    }
    const Model        target_model = load(argv[1]), head = load(argv[2]);
    const Context      target = open(target_model.get(), nullptr), drafter = open(head.get(), target.get());
    std::vector<float> features;
    const llama_token  anchor = prefill(target.get(), head.get(), prompt, features);

    const int32_t k = llama_model_dflash_selector_top_k(head.get());  // 0: DFlash 1
    llama_set_embeddings_nextn(drafter.get(), true, /*masked=*/k == 0);
    llama_set_causal_attn(drafter.get(), metadata(head.get(), "dflash.attention.causal") == "true");
    inject(drafter.get(), features, prompt.size());

    Batch             block(llama_batch_ext_init(drafter.get()));
    const llama_token mask = llama_vocab_mask(llama_model_get_vocab(head.get()));
    for (int32_t row = 0; row <= width; ++row) {
        add_token(block.get(), row == 0 ? anchor : mask, static_cast<llama_pos>(prompt.size()) + row, k == 0);
    }
    decode(drafter.get(), block.get());

    std::printf("{\"anchor\":%d,\"k\":%d,\"rows\":[", anchor, k);
    if (k == 0) {  // the best token of each row and its logit
        const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(target_model.get()));
        for (int32_t row = 1; row <= width; ++row) {
            const float * logits = llama_get_logits_ith(drafter.get(), row);
            const int32_t token  = best(logits, n_vocab);
            std::printf("%s[%d,%.9g]", row > 1 ? "," : "", token, static_cast<double>(logits[token]));
        }
    } else {  // K candidates, then K x K scores, as llama.cpp packs them
        const float * lattice = llama_get_embeddings_nextn(drafter.get());
        if (!lattice) {
            die("the head gave no lattice");
        }
        for (int32_t row = 1; row <= width; ++row) {
            std::printf("%s[", row > 1 ? "," : "");
            print_numbers(lattice + static_cast<size_t>(row) * llama_model_n_embd(head.get()), k + k * k);
            std::printf("]");
        }
    }
    std::printf("]}\n");
    return 0;
}
