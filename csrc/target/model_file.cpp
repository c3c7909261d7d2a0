#include "model_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <unordered_set>
#include <vector>

#include "error.h"
#include "gguf.h"
#include "llama-arch.h"
#include "llama-hparams.h"
#include "log.h"

namespace pd2 {

namespace {

constexpr size_t kMaxName = 64;  // GGML_MAX_NAME

struct GgufDeleter {
    void operator()(gguf_context * file) const { gguf_free(file); }
};

// Empty when the key is absent or no string.
std::string string_value(const gguf_context * file, const char * key) {
    const int64_t id = gguf_find_key(file, key);
    return id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_STRING ? gguf_get_val_str(file, id) : "";
}

// Nothing when the key is absent, or an array with a number a layer.
std::optional<double> number(const gguf_context * file, const std::string & key) {
    const int64_t id = gguf_find_key(file, key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    switch (gguf_get_kv_type(file, id)) {
        case GGUF_TYPE_UINT16:
            return gguf_get_val_u16(file, id);
        case GGUF_TYPE_UINT32:
            return gguf_get_val_u32(file, id);
        case GGUF_TYPE_INT32:
            return gguf_get_val_i32(file, id);
        case GGUF_TYPE_FLOAT32:
            return gguf_get_val_f32(file, id);
        default:
            return std::nullopt;
    }
}

// Sections of a multimodal rope share out a head's dimensions; the fourth is for images. Empty when absent.
std::vector<int32_t> rope_sections(const gguf_context * file, const std::string & key) {
    const int64_t id = gguf_find_key(file, key.c_str());
    if (id < 0 || gguf_get_kv_type(file, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(file, id) != GGUF_TYPE_INT32) {
        return {};
    }
    const auto * data = static_cast<const int32_t *>(gguf_get_arr_data(file, id));
    return {data, data + gguf_get_arr_n(file, id)};
}

// The values of a damaged file that llama.cpp asserts on, instead of refusing the file.
void check_values(const gguf_context * file, const std::string & architecture, const char * path) {
    const llm_arch arch = llm_arch_from_string(architecture);
    if (arch == LLM_ARCH_UNKNOWN) {
        return;  // llama.cpp says so
    }
    const auto require = [&](const char * name, const std::optional<double> & value, bool plausible) {
        if (value && !plausible) {
            fail(PD2_ERROR_MODEL_FILE, "the target '%s' is damaged (%s.%s is %g): download or convert it again", path,
                 architecture.c_str(), name, *value);
        }
    };
    const auto value = [&](const char * name) { return number(file, architecture + "." + name); };

    const auto n_layer = value("block_count");
    require("block_count", n_layer, n_layer >= 1 && n_layer <= LLAMA_MAX_LAYERS);

    const auto n_head = value("attention.head_count");
    if (!llm_arch_is_recurrent(arch) &&
        (gguf_find_key(file, (architecture + ".attention.head_count").c_str()) < 0 || (n_head && !(n_head >= 1)))) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' is damaged (%s.attention.head_count is missing or below 1): download or convert it again",
             path, architecture.c_str());
    }

    const auto n_expert = value("expert_count");
    const auto n_used   = value("expert_used_count");
    const bool mixes    = architecture.size() > 3 && architecture.compare(architecture.size() - 3, 3, "moe") == 0;
    if (mixes && (gguf_find_key(file, (architecture + ".expert_count").c_str()) < 0 || n_expert == 0)) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' is damaged (%s has experts, but %s.expert_count is missing or 0): download or convert it "
             "again",
             path, architecture.c_str(), architecture.c_str());
    }
    require("expert_count", n_expert, n_expert >= 0 && n_expert <= LLAMA_MAX_EXPERTS);
    require("expert_used_count", n_used, n_used <= n_expert.value_or(0) && (n_used > 0 || n_expert.value_or(0) == 0));

    if (n_expert.value_or(0) > 0 && gguf_find_key(file, (architecture + ".expert_used_count").c_str()) < 0) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' is damaged (%g experts, but %s.expert_used_count is missing): download or convert it "
             "again",
             path, *n_expert, architecture.c_str());
    }

    const auto   n_groups     = value("expert_group_count");
    const auto   n_group_used = value("expert_group_used_count");
    const double experts      = n_expert.value_or(0);
    require("expert_group_count", n_groups,
            n_groups == 0 || (n_groups > 0 && n_groups < experts && std::fmod(experts, n_groups.value_or(1)) == 0));
    require("expert_group_used_count", n_group_used, !(n_groups > 1) || (n_group_used > 0 && n_group_used < n_groups));

    // Divided by as the file has them, and a division by zero ends the process.
    for (const char * name : {"full_attention_interval", "experts_per_group", "ssm.group_count", "ssm.time_step_rank",
                              "wkv.head_size", "attention.output_group_count"}) {
        const auto divisor = value(name);
        require(name, divisor, divisor >= 1);
    }
    const auto moe_step = value("interleave_moe_layer_step");
    require("interleave_moe_layer_step", moe_step, moe_step >= 1 || architecture == "llama4");  // 0: no experts there

    for (const char * name : {"attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"}) {
        const auto epsilon = value(name);
        require(name, epsilon, std::isfinite(epsilon.value_or(0)) && epsilon >= 0);
    }
    const auto n_rot    = value("rope.dimension_count");
    const auto head_dim = value("attention.key_length");
    require("rope.dimension_count", n_rot,
            n_rot >= 2 && std::fmod(n_rot.value_or(0), 2) == 0 && (!head_dim || n_rot <= head_dim));

    const std::vector<int32_t> sections = rope_sections(file, architecture + ".rope.dimension_sections");
    const double               n_shared = std::accumulate(sections.begin(), sections.end(), 0.0);
    const bool negative      = std::any_of(sections.begin(), sections.end(), [](int32_t n) { return n < 0; });
    const bool text_has_none = std::all_of(sections.begin(), sections.begin() + std::min<size_t>(3, sections.size()),
                                           [](int32_t n) { return n == 0; });
    if (!sections.empty() && (negative || text_has_none || n_shared > head_dim.value_or(n_rot.value_or(n_shared)))) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' is damaged (%s.rope.dimension_sections does not share out a head's dimensions): download "
             "or convert it again",
             path, architecture.c_str());
    }

    const int64_t tokens = gguf_find_key(file, "tokenizer.ggml.tokens");
    if (tokens >= 0 && gguf_get_kv_type(file, tokens) == GGUF_TYPE_ARRAY &&
        gguf_get_arr_type(file, tokens) == GGUF_TYPE_STRING) {
        std::unordered_set<std::string> seen;
        for (size_t i = 0; i < gguf_get_arr_n(file, tokens); ++i) {
            const std::string token = gguf_get_arr_str(file, tokens, i);
            if (!token.empty() && !seen.insert(token).second) {
                fail(PD2_ERROR_MODEL_FILE,
                     "the target '%s' is damaged (its vocabulary has '%.40s' twice): convert it again", path,
                     token.c_str());
            }
        }
    }
}

void check_magic(const std::string & path) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const fs::path  file = fs::u8path(path);
    if (path.empty() || !fs::exists(file, ignored)) {
        fail(PD2_ERROR_MODEL_FILE, "the target '%s' does not exist: check the path", path.c_str());
    }
    if (fs::is_directory(file, ignored)) {
        fail(PD2_ERROR_MODEL_FILE, "the target '%s' is a folder: give the GGUF file itself", path.c_str());
    }
    char          magic[4] = {};
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
        fail(PD2_ERROR_MODEL_FILE, "the target '%s' cannot be opened: check that you may read it", path.c_str());
    }
    stream.read(magic, sizeof(magic));
    if (std::string(magic, sizeof(magic)) != "GGUF") {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' is not a GGUF file (it does not start with the letters GGUF): "
             "convert the model with llama.cpp's convert_hf_to_gguf.py or download its GGUF",
             path.c_str());
    }
}

}  // namespace

std::string check_target_file(const std::string & path) {
    check_magic(path);

    log_forget_errors();
    const std::unique_ptr<gguf_context, GgufDeleter> file(gguf_init_from_file(path.c_str(), {true, nullptr}));
    if (!file) {
        fail(PD2_ERROR_MODEL_FILE, "the target '%s' is damaged (%s): download or convert it again", path.c_str(),
             log_first_error().c_str());
    }

    const int64_t split = gguf_find_key(file.get(), "split.no");
    if (split >= 0 && gguf_get_kv_type(file.get(), split) == GGUF_TYPE_UINT16 &&
        gguf_get_val_u16(file.get(), split) > 0) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' is part %d of a split model: give the first part, the others are found "
             "beside it",
             path.c_str(), gguf_get_val_u16(file.get(), split) + 1);
    }

    const std::string architecture = string_value(file.get(), "general.architecture");
    const std::string type         = string_value(file.get(), "general.type");
    if (architecture == "dflash" || architecture == "dflash-draft" || architecture == "eagle3") {
        fail(PD2_ERROR_MODEL_FILE,
             "'%s' is a head (architecture %s), not a target: pass it as head and its target's GGUF as "
             "target",
             path.c_str(), architecture.c_str());
    }
    if (architecture == "clip" || type == "mmproj") {
        fail(PD2_ERROR_MODEL_FILE,
             "'%s' is an image or audio projector (mmproj), not a language model: give the model's own "
             "GGUF",
             path.c_str());
    }
    if (type == "adapter") {
        fail(PD2_ERROR_MODEL_FILE,
             "'%s' is a LoRA adapter, not a model: merge it into its base model first (llama.cpp's "
             "llama-export-lora)",
             path.c_str());
    }
    if (architecture.empty()) {
        fail(PD2_ERROR_MODEL_FILE,
             "'%s' is a GGUF file without general.architecture, so it holds no model: give the model's "
             "own GGUF",
             path.c_str());
    }
    if (architecture.size() > kMaxName) {
        fail(PD2_ERROR_MODEL_FILE,
             "the target '%s' is damaged (its general.architecture has %zu letters): download or convert it again",
             path.c_str(), architecture.size());
    }
    check_values(file.get(), architecture, path.c_str());
    return architecture;
}

}  // namespace pd2
