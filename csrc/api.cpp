// The C ABI: every function catches what the rooms throw and turns it into a status and a message.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "drafter/drafter.h"
#include "error.h"
#include "pydflash2.h"
#include "speculation/batch.h"
#include "speculation/pair.h"
#include "speculation/row_check.h"
#include "speculation/sequence.h"
#include "speculation/speculator.h"
#include "speculation/watch.h"
#include "target/cpu.h"
#include "target/devices.h"
#include "target/fork.h"
#include "target/json_schema.h"
#include "target/log.h"
#include "target/quantize.h"
#include "target/target.h"

struct pd2_engine {
    std::string                   head_path;
    std::unique_ptr<pd2::Target>  target;
    std::unique_ptr<pd2::Drafter> drafter;  // after the target, whose tensors it borrows: destroyed before it
    bool                          in_use = false;
};

struct pd2_sequence {
    pd2_engine *                   engine;
    pd2::Sequence                  sequence;
    pd2::Speculator                speculator;
    std::unique_ptr<pd2::RowCheck> check;

    explicit pd2_sequence(pd2_engine * owner)
        : engine(owner), sequence(*owner->target, owner->drafter.get()), speculator(sequence) {}
};

struct pd2_batch {
    pd2::Batch              batch;
    std::vector<pd2_chosen> chosen;  // of the last step
};

namespace {

thread_local std::string last_error;

pd2_status report(pd2_status status, const char * message) {
    last_error = message;
    return status;
}

template <typename Body>
pd2_status guarded(Body && body) {
    try {
        body();
        return PD2_OK;
    } catch (const pd2::Error & error) {
        return report(error.status, error.what());
    } catch (const std::bad_alloc &) {
        return report(PD2_ERROR_MEMORY, "out of memory; use a smaller model or context_size");
    } catch (const std::exception & error) {
        return report(PD2_ERROR_NATIVE, error.what());
    }
}

template <size_t N>
void copy_text(char (&destination)[N], const std::string & text) {
    std::snprintf(destination, N, "%s", text.c_str());
}

// Caches hold whole blocks of 32 (quantised types) or single numbers; ggml_type_name is the spelling users know.
ggml_type cache_type(const char * name, const char * what, std::initializer_list<ggml_type> allowed) {
    if (!name) {
        return GGML_TYPE_F16;
    }
    std::string names;
    for (const ggml_type type : allowed) {
        if (std::strcmp(name, ggml_type_name(type)) == 0) {
            return type;
        }
        names += std::string(names.empty() ? "" : ", ") + ggml_type_name(type);
    }
    pd2::fail(PD2_ERROR_ARGUMENT, "%s is '%.40s'; possible are %s", what, name, names.c_str());
}

// Layers whose features an engine without a head is to read.
std::vector<int32_t> taps_read(const pd2_engine_params & params, int32_t n_layer) {
    std::vector<int32_t> taps;
    for (int32_t i = 0; i < params.n_taps_read; ++i) {
        const int32_t layer = params.taps_read[i];
        if (layer < 0 || layer >= n_layer) {
            pd2::fail(PD2_ERROR_ARGUMENT, "taps_read names layer %d, the target has layers 0 to %d: give some of these",
                      layer, n_layer - 1);
        }
        if (std::find(taps.begin(), taps.end(), layer) != taps.end()) {
            pd2::fail(PD2_ERROR_ARGUMENT, "taps_read names layer %d twice: give each layer once", layer);
        }
        taps.push_back(layer);
    }
    return taps;
}

std::vector<ggml_backend_dev_t> devices_of(const pd2_engine_params & params) {
    std::vector<ggml_backend_dev_t> devices;
    for (int32_t i = 0; i < params.n_devices; ++i) {
        for (ggml_backend_dev_t device : pd2::find_devices(params.devices[i])) {
            if (!pd2::is_gpu(device)) {
                if (params.n_devices > 1) {
                    pd2::fail(PD2_ERROR_ARGUMENT,
                              "device names %s among others: the CPU takes what the others do not by itself, leave it "
                              "out",
                              ggml_backend_dev_name(device));
                }
                continue;
            }
            if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
                pd2::fail(PD2_ERROR_ARGUMENT, "device names %s twice: give each device once",
                          ggml_backend_dev_name(device));
            }
            devices.push_back(device);
        }
    }
    return devices;
}

// Preferred first, the CPU last.
std::vector<ggml_backend_dev_t> head_devices(const pd2_engine_params & params, const pd2::Target & target) {
    ggml_backend_dev_t device = target.device_for_head();
    if (params.draft_device) {
        const auto found = pd2::find_devices(params.draft_device);
        if (found.size() != 1) {
            pd2::fail(PD2_ERROR_ARGUMENT,
                      "draft_device is '%.80s', which is %zu devices: a head runs on one, give that",
                      params.draft_device, found.size());
        }
        device = found.front();
        if (pd2::is_remote(device)) {
            pd2::fail(PD2_ERROR_ARGUMENT,
                      "draft_device is '%.80s': every draft would wait for the network, give a device of this machine",
                      params.draft_device);
        }
    }
    if (pd2::is_gpu(device)) {
        return {device, pd2::cpu_device()};
    }
    return {pd2::cpu_device()};
}

void load(const pd2_engine_params & params, pd2_engine & engine) {
    if (!params.target_path) {
        pd2::fail(PD2_ERROR_ARGUMENT, "target_path is missing; give the target's GGUF file");
    }
    if (params.taps < PD2_TAPS_AUTO || params.taps > PD2_TAPS_CALLBACK) {
        pd2::fail(PD2_ERROR_ARGUMENT, "taps is %d; give one of pd2_taps", static_cast<int>(params.taps));
    }
    if (params.n_taps_read < 0 || (params.n_taps_read > 0 && !params.taps_read)) {
        pd2::fail(PD2_ERROR_ARGUMENT, "n_taps_read is %d; give the number of layers in taps_read", params.n_taps_read);
    }
    if (params.n_taps_read > 0 && params.head_path) {
        pd2::fail(PD2_ERROR_ARGUMENT, "a head reads its own layers: give head_path or taps_read, not both");
    }
    pd2::TargetParams options;
    options.path         = params.target_path;
    options.context_size = params.context_size;
    options.batch_size   = params.batch_size != 0 ? params.batch_size : 512;
    options.n_threads    = params.n_threads;
    options.n_gpu_layers = params.n_gpu_layers;
    options.split        = params.split;
    options.kv_type      = cache_type(params.kv_type, "kv_type",
                                      {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q5_1,
                                       GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL});
    options.use_mmap     = params.use_mmap;
    options.taps_mode    = params.taps;

    options.batch_invariant = params.batch_invariant;
    const ggml_type drafter_type =
        cache_type(params.drafter_kv_type, "drafter_kv_type", {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_BF16});

    if (params.draft_vocabulary < -1) {
        pd2::fail(PD2_ERROR_ARGUMENT,
                  "draft_vocabulary is %d; give a number of tokens, 0 to have it chosen, -1 for all",
                  params.draft_vocabulary);
    }
    pd2::log_install();  // ggml's file reader logs too
    pd2::fork_install();
    pd2::fork_check();
    options.devices_chosen = params.n_devices > 0;
    options.devices        = devices_of(params);
    options.device_shares.assign(params.device_shares, params.device_shares + params.n_device_shares);

    // Both files are read and compared before any weight of the head is.
    pd2::HeadParams head;
    if (params.head_path) {
        head = pd2::Drafter::read(params.head_path);
    }
    engine.target = pd2::Target::load(options);
    if (!params.head_path) {
        engine.target->open(taps_read(params, engine.target->info().n_layer), 0);
        return;
    }
    engine.head_path = params.head_path;
    pd2::check_pair(head, engine.head_path, engine.target->info());
    engine.target->open(head.taps, head.block_size - 1);

    const pd2::SharedTensors shared = engine.target->shared();
    pd2::DrafterParams       drafter;
    drafter.path             = engine.head_path;
    drafter.context_size     = engine.target->info().context_size;
    drafter.batch_size       = engine.target->batch_size();
    drafter.n_threads        = engine.target->n_threads();
    drafter.kv_type          = drafter_type;
    drafter.devices          = head_devices(params, *engine.target);
    drafter.may_borrow       = engine.target->shares_whole();
    drafter.target_path      = options.path;
    drafter.ranked_tokens    = [&] { return engine.target->ranked_tokens(); };
    drafter.draft_vocabulary = params.draft_vocabulary;
    drafter.token_embd       = shared.token_embd;
    drafter.output           = shared.output;
    drafter.output_scale     = shared.output_scale;
    drafter.output_bias      = shared.output_bias;
    engine.drafter           = pd2::Drafter::load(drafter);
}

pd2::Sequence::Settings settings_of(const pd2_sampling * given) {
    pd2_sampling s;
    pd2_sampling_default(&s);
    if (given) {
        s = *given;
    }
    pd2::Sequence::Settings settings;
    settings.sampling.temperature       = s.temperature;
    settings.sampling.top_k             = s.top_k;
    settings.sampling.top_p             = s.top_p;
    settings.sampling.min_p             = s.min_p;
    settings.sampling.typical_p         = s.typical_p;
    settings.sampling.repeat_penalty    = s.repeat_penalty;
    settings.sampling.presence_penalty  = s.presence_penalty;
    settings.sampling.frequency_penalty = s.frequency_penalty;
    settings.sampling.penalty_last_n    = s.penalty_last_n;
    settings.sampling.grammar           = s.grammar ? s.grammar : "";
    for (int32_t i = 0; i < s.n_logit_bias; ++i) {
        settings.sampling.logit_bias.emplace_back(s.bias_tokens[i], s.bias_values[i]);
    }
    settings.seed       = s.seed;
    settings.n_logprobs = s.n_logprobs;
    return settings;
}

pd2::WalkParams walk_of(const pd2_draft_params & params) {
    return {params.temperature, params.min_probability, params.walk};
}

pd2::Policy::Lookups lookups_of(const pd2_round_params & params) {
    switch (params.lookup) {
        case PD2_LOOKUP_AUTO:
            return params.max_draft_tokens < 0 ? pd2::Policy::Lookups::any : pd2::Policy::Lookups::off;
        case PD2_LOOKUP_OFF:
            return pd2::Policy::Lookups::off;
        case PD2_LOOKUP_MAP_K4V:
            return pd2::Policy::Lookups::map_k4v;
        case PD2_LOOKUP_MOD:
            return pd2::Policy::Lookups::mod;
    }
    pd2::fail(PD2_ERROR_ARGUMENT, "lookup is %d; give one of pd2_lookup", static_cast<int>(params.lookup));
}

pd2_verdict verdict_of(const pd2::Sequence::Verdict & made) {
    pd2_verdict verdict = {};
    verdict.n           = static_cast<int32_t>(made.tokens.size());
    verdict.n_accepted  = made.n_accepted;
    verdict.tokens      = made.tokens.data();
    verdict.has_bonus   = made.has_bonus;
    verdict.finished    = made.finished;
    return verdict;
}

}  // namespace

extern "C" {

const char * pd2_last_error(void) {
    return last_error.c_str();
}

const char * pd2_llama_cpp_pin(void) {
    return PD2_LLAMA_CPP_PIN;
}

const char * pd2_system_info(void) {
    return pd2::system_info();
}

int32_t pd2_device_count(void) {
    pd2::log_install();  // the first look at the devices makes their back ends talk
    pd2::fork_install();
    return static_cast<int32_t>(ggml_backend_dev_count());
}

pd2_status pd2_device_get(int32_t index, pd2_device_info * info) {
    return guarded([&] {
        pd2::fork_check();
        if (index < 0 || index >= pd2_device_count()) {
            pd2::fail(PD2_ERROR_ARGUMENT, "there is no device %d; %d were found", index, pd2_device_count());
        }
        ggml_backend_dev_t device = ggml_backend_dev_get(static_cast<size_t>(index));
        size_t             free = 0, total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        *info = {};
        copy_text(info->name, ggml_backend_dev_name(device));
        copy_text(info->description, ggml_backend_dev_description(device));
        copy_text(info->backend, ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
        const auto type    = ggml_backend_dev_type(device);
        info->is_gpu       = type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
        info->memory_free  = free;
        info->memory_total = total;
    });
}

int32_t pd2_log_next(int32_t * level, char * line, int32_t size) {
    return pd2::log_next(*level, line, size);
}

void pd2_engine_default_params(pd2_engine_params * params) {
    *params              = {};
    params->n_gpu_layers = -1;
    params->use_mmap     = true;
}

pd2_status pd2_engine_load(const pd2_engine_params * params, pd2_engine ** engine) {
    *engine = nullptr;
    return guarded([&] {
        auto made = std::make_unique<pd2_engine>();
        load(*params, *made);
        *engine = made.release();
    });
}

void pd2_engine_free(pd2_engine * engine) {
    delete engine;
}

pd2_status pd2_engine_target_info(const pd2_engine * engine, pd2_target_info * info) {
    return guarded([&] { *info = engine->target->info(); });
}

pd2_status pd2_engine_head_info(const pd2_engine * engine, pd2_head_info * info) {
    return guarded([&] {
        if (!engine->drafter) {
            pd2::fail(PD2_ERROR_ARGUMENT, "this engine was loaded without a head");
        }
        const pd2::HeadParams & p = engine->drafter->params();
        *info                     = {};
        info->version             = p.version;
        info->block_size          = p.block_size;
        info->n_layer             = p.n_layer;
        info->n_embd              = p.n_embd;
        info->n_head              = p.n_head;
        info->n_head_kv           = p.n_head_kv;
        info->head_dim            = p.head_dim;
        info->n_vocab             = p.n_vocab;
        info->n_draft_vocab       = p.own_output ? p.n_draft_vocab : p.n_vocab;
        info->mask_token          = p.mask_token;
        info->n_taps              = static_cast<int32_t>(p.taps.size());
        info->window              = p.n_sliding() > 0 ? p.window : 0;
        info->n_sliding_layers    = p.n_sliding();
        info->causal              = p.causal;
        info->conv_kernel         = p.conv_kernel;
        info->conv_group          = p.conv_group;
        info->selector_rank       = p.rank;
        info->top_k               = p.top_k;
        info->own_embedding       = p.own_embedding;
        info->own_output          = p.own_output;
        info->weight_bytes        = engine->drafter->weight_bytes();
        info->vocabulary_bytes    = engine->drafter->vocabulary_bytes();
        info->cache_bytes         = engine->drafter->cache_bytes();
        info->cache_per_token     = engine->drafter->cache_per_token();
        info->compute_bytes       = engine->drafter->compute_bytes();
        info->n_candidates        = engine->drafter->n_candidates();
        info->round_nodes         = engine->drafter->n_nodes();
        info->round_splits        = engine->drafter->n_splits();
        copy_text(info->device, ggml_backend_dev_name(engine->drafter->device()));
        std::copy(p.taps.begin(), p.taps.end(), info->taps);
    });
}

int32_t pd2_engine_head_tensors(const pd2_engine * engine, pd2_tensor_place * places, int32_t capacity) {
    const auto found = engine->drafter ? engine->drafter->tensors() : std::vector<pd2::TensorPlace>();
    for (size_t i = 0; i < found.size() && i < static_cast<size_t>(std::max(0, capacity)); ++i) {
        places[i] = {};
        copy_text(places[i].name, found[i].name);
        copy_text(places[i].type, ggml_type_name(found[i].type));
        copy_text(places[i].device, ggml_backend_dev_name(found[i].device));
        places[i].bytes       = found[i].bytes;
        places[i].is_borrowed = found[i].borrowed;
    }
    return static_cast<int32_t>(found.size());
}

int32_t pd2_engine_head_operations(const pd2_engine * engine, pd2_operation_place * places, int32_t capacity) {
    const auto found = engine->drafter ? engine->drafter->operations() : std::vector<pd2::OperationPlace>();
    for (size_t i = 0; i < found.size() && i < static_cast<size_t>(std::max(0, capacity)); ++i) {
        places[i] = {};
        copy_text(places[i].operation, ggml_op_name(found[i].op));
        copy_text(places[i].device, ggml_backend_dev_name(found[i].device));
        places[i].n = found[i].n;
    }
    return static_cast<int32_t>(found.size());
}

int32_t pd2_tokenize(const pd2_engine * engine, const char * text, int32_t length, bool add_special, bool parse_special,
                     int32_t * tokens, int32_t capacity) {
    int32_t          n      = 0;
    const pd2_status status = guarded([&] {
        const std::vector<int32_t> result = engine->target->tokenize(
            std::string(text, static_cast<size_t>(std::max(0, length))), add_special, parse_special);
        n = static_cast<int32_t>(result.size());
        if (n <= capacity) {
            std::copy(result.begin(), result.end(), tokens);
        } else {
            n = -n;
        }
    });
    return status == PD2_OK ? n : INT32_MIN;
}

int32_t pd2_token_bytes(const pd2_engine * engine, int32_t token, bool special, char * bytes, int32_t capacity) {
    int32_t          n      = 0;
    const pd2_status status = guarded([&] {
        const std::string result = engine->target->token_bytes(token, special);
        n                        = static_cast<int32_t>(result.size());
        if (n <= capacity) {
            std::copy(result.begin(), result.end(), bytes);
        } else {
            n = -n;
        }
    });
    return status == PD2_OK ? n : INT32_MIN;
}

bool pd2_token_is_end(const pd2_engine * engine, int32_t token) {
    return engine->target->is_end(token);
}

const char * pd2_chat_template(const pd2_engine * engine) {
    return engine->target->chat_template();
}

int32_t pd2_json_schema_to_grammar(const char * schema_json, char * grammar, int32_t capacity) {
    int32_t          n      = 0;
    const pd2_status status = guarded([&] {
        const std::string result = pd2::json_schema_to_gbnf(schema_json);
        n                        = static_cast<int32_t>(result.size());
        if (n <= capacity) {
            std::copy(result.begin(), result.end(), grammar);
        } else {
            n = -n;
        }
    });
    return status == PD2_OK ? n : INT32_MIN;
}

pd2_status pd2_check_grammar(const pd2_engine * engine, const char * grammar) {
    return guarded([&] { engine->target->check_grammar(grammar); });
}

pd2_status pd2_sequence_create(pd2_engine * engine, pd2_sequence ** sequence) {
    *sequence = nullptr;
    return guarded([&] {
        if (engine->in_use) {
            pd2::fail(PD2_ERROR_ARGUMENT, "this engine already has a sequence; one at a time is supported");
        }
        *sequence      = new pd2_sequence(engine);
        engine->in_use = true;
    });
}

void pd2_sequence_free(pd2_sequence * sequence) {
    if (sequence) {
        sequence->engine->in_use = false;
        delete sequence;
    }
}

void pd2_sampling_default(pd2_sampling * sampling) {
    *sampling                = {};
    sampling->repeat_penalty = 1;
    sampling->penalty_last_n = 64;
    sampling->typical_p      = 1;
    sampling->top_p          = 1;
    sampling->n_logprobs     = -1;
}

pd2_status pd2_sampling_check(const pd2_engine * engine, const pd2_sampling * sampling) {
    return guarded([&] { pd2::Sequence::sampler(*engine->target, settings_of(sampling)); });
}

pd2_status pd2_sequence_begin(pd2_sequence * sequence, const int32_t * tokens, int32_t n_tokens, bool drafting,
                              const pd2_sampling * sampling, int32_t * n_reused) {
    return guarded([&] {
        sequence->check.reset();
        *n_reused = sequence->sequence.begin(tokens, n_tokens, drafting, settings_of(sampling));
    });
}

pd2_status pd2_sequence_prefill(pd2_sequence * sequence, int32_t max_tokens, int32_t * n_left) {
    return guarded([&] { *n_left = sequence->sequence.prefill(max_tokens); });
}

void pd2_draft_default_params(pd2_draft_params * params) {
    *params       = {};
    params->width = INT32_MAX;
}

pd2_status pd2_sequence_draft(pd2_sequence * sequence, const pd2_draft_params * params, pd2_draft * draft) {
    return guarded([&] {
        pd2::Watch                   watch;
        const pd2::Sequence::Draft & made = sequence->sequence.draft(params->width, walk_of(*params));
        draft->proposal.n                 = static_cast<int32_t>(made.path.tokens.size());
        draft->proposal.tokens            = made.path.tokens.data();
        draft->proposal.k                 = made.lattice.k;
        draft->proposal.candidates        = made.lattice.candidates.data();
        draft->proposal.q                 = made.path.proposal.empty() ? nullptr : made.path.proposal.data();
        draft->n_lattice                  = made.lattice.n;
        draft->probabilities              = made.path.probabilities.data();
        draft->candidates                 = made.lattice.candidates.data();
        draft->unary                      = made.lattice.unary.data();
        draft->scores                     = made.lattice.scores.data();
        draft->seconds                    = watch.lap();
    });
}

pd2_status pd2_sequence_verify(pd2_sequence * sequence, const pd2_proposal * draft, int32_t max_commit,
                               pd2_verdict * verdict) {
    return guarded([&] {
        if (draft->n < 0 || (draft->q && draft->k < 1)) {
            pd2::fail(PD2_ERROR_ARGUMENT, "a draft of %d tokens with %d candidates each cannot be", draft->n, draft->k);
        }
        const std::vector<pd2::Proposal> proposals =
            pd2::proposals_of(draft->n, draft->tokens, draft->k, draft->candidates, draft->q);
        pd2::Watch watch;
        *verdict         = verdict_of(sequence->sequence.verify(proposals, max_commit));
        verdict->seconds = watch.lap();
    });
}

void pd2_round_default_params(pd2_round_params * params) {
    *params                  = {};
    params->max_draft_tokens = -1;
    params->max_commit       = -1;
}

pd2_status pd2_sequence_round(pd2_sequence * sequence, const pd2_round_params * params, pd2_round * round) {
    return guarded([&] {
        pd2::Speculator::Settings settings;
        settings.mode.head_width = params->max_draft_tokens < 0 ? pd2::Policy::Mode::any : params->max_draft_tokens;
        settings.mode.lookups    = lookups_of(*params);
        settings.mode.speculate  = params->max_draft_tokens != 0 || settings.mode.lookups != pd2::Policy::Lookups::off;
        settings.reproducible    = params->reproducible;
        settings.walk            = walk_of(params->walk);
        const pd2::Speculator::Outcome & made = sequence->speculator.round(settings, params->max_commit);
        round->verdict                        = verdict_of(made.verdict);
        round->verdict.seconds                = made.verify_seconds;
        round->drafter                        = static_cast<pd2_drafter>(made.kind);
        round->n_drafted                      = made.n_verified;
        round->draft_seconds                  = made.draft_seconds;
    });
}

pd2_status pd2_sequence_allow_widths(pd2_sequence * sequence, const int32_t * widths, int32_t n) {
    return guarded([&] {
        sequence->speculator.allow(widths ? std::optional(std::vector<int32_t>(widths, widths + n)) : std::nullopt);
    });
}

pd2_status pd2_sequence_set_cost(pd2_sequence * sequence, pd2_drafter drafter, int32_t size, double seconds) {
    return guarded([&] {
        pd2::Policy & policy = sequence->speculator.policy();
        drafter == PD2_DRAFTER_HEAD ? policy.set_draft(size, seconds) : policy.set_verify(size, seconds);
    });
}

pd2_status pd2_sequence_cost(pd2_sequence * sequence, pd2_drafter drafter, int32_t size, double * seconds) {
    return guarded([&] {
        const pd2::Costs & costs = sequence->speculator.policy().costs();
        *seconds                 = drafter == PD2_DRAFTER_HEAD ? costs.draft(size) : costs.verify(size);
    });
}

pd2_status pd2_sequence_logprobs(const pd2_sequence * sequence, pd2_logprobs * logprobs) {
    return guarded([&] {
        const pd2::Logprobs & made = sequence->sequence.logprobs();
        logprobs->n                = static_cast<int32_t>(made.chosen.size());
        logprobs->n_top            = made.n_top;
        logprobs->chosen           = made.chosen.data();
        logprobs->top_tokens       = made.top_tokens.data();
        logprobs->top              = made.top.data();
    });
}

int32_t pd2_sequence_n_tokens(const pd2_sequence * sequence) {
    return static_cast<int32_t>(sequence->sequence.tokens().size());
}

const int32_t * pd2_sequence_tokens(const pd2_sequence * sequence) {
    return sequence->sequence.tokens().data();
}

const char * pd2_sequence_draft_obstacle(const pd2_sequence * sequence) {
    return sequence->sequence.draft_obstacle();
}

pd2_status pd2_sequence_logits(const pd2_sequence * sequence, const float ** logits, int32_t * n_rows) {
    return guarded([&] {
        const pd2::Target & target = *sequence->engine->target;
        *n_rows                    = target.n_logits();
        *logits                    = *n_rows > 0 ? target.logits(0) : nullptr;
    });
}

pd2_status pd2_sequence_features(const pd2_sequence * sequence, const float ** features, int32_t * n_rows) {
    return guarded([&] {
        const pd2::Target & target = *sequence->engine->target;
        *n_rows                    = target.n_features();
        *features                  = *n_rows > 0 ? target.features() : nullptr;
    });
}

pd2_status pd2_sequence_read_features(pd2_sequence * sequence, const int32_t * tokens, int32_t n_tokens,
                                      const float ** features) {
    return guarded([&] {
        const std::vector<float> & read = sequence->sequence.read_features(tokens, n_tokens);
        sequence->check.reset();
        *features = read.data();
    });
}

pd2_status pd2_sequence_forget(pd2_sequence * sequence) {
    return guarded([&] {
        sequence->check.reset();
        sequence->sequence.forget();
    });
}

pd2_status pd2_sequence_check_begin(pd2_sequence * sequence, int32_t max_rows, int32_t depth, int32_t probe) {
    return guarded([&] {
        sequence->check.reset();
        sequence->sequence.forget();
        sequence->check = std::make_unique<pd2::RowCheck>(*sequence->engine->target, max_rows, depth, probe);
    });
}

pd2_status pd2_sequence_check_step(pd2_sequence * sequence, float * differences, bool * more) {
    return guarded([&] {
        if (!sequence->check) {
            pd2::fail(PD2_ERROR_ARGUMENT, "no check is going on; begin one first");
        }
        *more = sequence->check->step();
        std::copy(sequence->check->differences().begin(), sequence->check->differences().end(), differences);
        if (!*more) {
            sequence->check.reset();
        }
    });
}

pd2_status pd2_batch_create(const pd2_engine * engine, int32_t n_texts, int32_t text_size, int32_t n_top,
                            pd2_batch ** batch) {
    *batch = nullptr;
    return guarded([&] { *batch = new pd2_batch{{*engine->target, n_texts, text_size, n_top}, {}}; });
}

void pd2_batch_free(pd2_batch * batch) {
    delete batch;
}

pd2_status pd2_batch_begin(pd2_batch * batch, int32_t slot, const int32_t * tokens, int32_t n_tokens,
                           const pd2_sampling * sampling) {
    return guarded([&] { batch->batch.begin(slot, tokens, n_tokens, settings_of(sampling)); });
}

pd2_status pd2_batch_end(pd2_batch * batch, int32_t slot) {
    return guarded([&] { batch->batch.end(slot); });
}

pd2_status pd2_batch_step(pd2_batch * batch, pd2_step * step) {
    return guarded([&] {
        const pd2::Batch::Step & made = batch->batch.step();
        batch->chosen.clear();
        for (const pd2::Batch::Chosen & chosen : made.chosen) {
            batch->chosen.push_back({chosen.slot, chosen.token, chosen.finished, chosen.is_end});
        }
        step->n          = static_cast<int32_t>(made.chosen.size());
        step->chosen     = batch->chosen.data();
        step->top_tokens = made.top_tokens.data();
        step->top        = made.top.data();
    });
}

pd2_status pd2_quantize(const char * type, const float * source, void * destination, int64_t n_rows, int64_t n_per_row,
                        uint64_t * n_bytes) {
    return guarded([&] { *n_bytes = pd2::quantize(type, source, destination, n_rows, n_per_row); });
}

pd2_status pd2_quantize_plan(const char * file_type, const pd2_quantize_geometry * geometry, int32_t n_tensors,
                             const char ** names, const int64_t * shapes, const char ** types) {
    return guarded([&] {
        std::vector<pd2::PlannedTensor> tensors;
        for (int32_t i = 0; i < n_tensors; ++i) {
            const int64_t * shape = shapes + 4 * i;
            tensors.push_back({names[i], {shape[0], shape[1], shape[2], shape[3]}});
        }
        const std::vector<const char *> chosen = pd2::quantize_plan(file_type, *geometry, tensors);
        std::copy(chosen.begin(), chosen.end(), types);
    });
}

}  // extern "C"
