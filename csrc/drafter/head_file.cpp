#include "head_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>

#include "error.h"

namespace pd2 {
namespace {

constexpr int32_t kMaxBlock  = 1024;
constexpr int32_t kMaxTaps   = 64;  // pd2_head_info.taps
constexpr int32_t kMaxLayers = 256;
constexpr int64_t kMaxScores = 1 << 26;  // block_size * top_k * top_k, 256 MB
constexpr float   kMissing   = -1;
constexpr float   kTiny      = std::numeric_limits<float>::min();  // its reciprocal is finite

// Typed, checked reading of the metadata. Writers differ in integer width, so any integer that fits is taken.
class Metadata {
  public:
    Metadata(const gguf_context * file, const std::string & path) : file_(file), path_(path) {}

    std::optional<double> number(const char * key) const {
        const int64_t id = gguf_find_key(file_, key);
        if (id < 0) {
            return std::nullopt;
        }
        switch (gguf_get_kv_type(file_, id)) {
            case GGUF_TYPE_UINT8:
                return gguf_get_val_u8(file_, id);
            case GGUF_TYPE_INT8:
                return gguf_get_val_i8(file_, id);
            case GGUF_TYPE_UINT16:
                return gguf_get_val_u16(file_, id);
            case GGUF_TYPE_INT16:
                return gguf_get_val_i16(file_, id);
            case GGUF_TYPE_UINT32:
                return gguf_get_val_u32(file_, id);
            case GGUF_TYPE_INT32:
                return gguf_get_val_i32(file_, id);
            case GGUF_TYPE_UINT64:
                return static_cast<double>(gguf_get_val_u64(file_, id));
            case GGUF_TYPE_INT64:
                return static_cast<double>(gguf_get_val_i64(file_, id));
            case GGUF_TYPE_FLOAT32:
                return gguf_get_val_f32(file_, id);
            case GGUF_TYPE_FLOAT64:
                return gguf_get_val_f64(file_, id);
            case GGUF_TYPE_BOOL:
                return gguf_get_val_bool(file_, id) ? 1 : 0;
            default:
                wrong_type(key, "a number");
        }
    }

    int32_t integer(const char * key, int32_t low, int32_t high) const {
        const std::optional<int32_t> value = optional_integer(key, low, high);
        if (!value) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: the key %s is missing, and there is no safe default; convert the head again with "
                 "'pydflash2 convert'",
                 path_.c_str(), key);
        }
        return *value;
    }

    std::optional<int32_t> optional_integer(const char * key, int32_t low, int32_t high) const {
        const std::optional<double> value = number(key);
        if (!value) {
            return std::nullopt;
        }
        if (*value != std::floor(*value) || *value < low || *value > high) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: %s is %g, outside %d..%d; the file is damaged or of another format: convert the head again",
                 path_.c_str(), key, *value, low, high);
        }
        return static_cast<int32_t>(*value);
    }

    float real(const char * key, float fallback, float least = 0) const {
        const std::optional<double> value = number(key);
        if (!value) {
            return fallback;
        }
        if (!(*value >= least && *value <= std::numeric_limits<float>::max())) {
            fail(PD2_ERROR_HEAD_FORMAT, "%s: %s is %g; it must be a finite number, %s; convert the head again",
                 path_.c_str(), key, *value, least > 0 ? "above 0" : "0 or more");
        }
        return static_cast<float>(*value);
    }

    std::string text(const char * key) const {
        const int64_t id = gguf_find_key(file_, key);
        if (id < 0) {
            return {};
        }
        if (gguf_get_kv_type(file_, id) != GGUF_TYPE_STRING) {
            wrong_type(key, "a string");
        }
        return gguf_get_val_str(file_, id);
    }

    // An array of integers or booleans; empty when absent.
    std::vector<int32_t> integers(const char * key) const {
        const int64_t id = gguf_find_key(file_, key);
        if (id < 0) {
            return {};
        }
        if (gguf_get_kv_type(file_, id) != GGUF_TYPE_ARRAY) {
            wrong_type(key, "an array");
        }
        const size_t         n    = gguf_get_arr_n(file_, id);
        const gguf_type      type = gguf_get_arr_type(file_, id);
        std::vector<int32_t> values(n);
        if (type == GGUF_TYPE_BOOL || type == GGUF_TYPE_UINT8) {
            const auto * data = static_cast<const uint8_t *>(gguf_get_arr_data(file_, id));
            std::copy(data, data + n, values.begin());
        } else if (type == GGUF_TYPE_INT8) {
            const auto * data = static_cast<const int8_t *>(gguf_get_arr_data(file_, id));
            std::copy(data, data + n, values.begin());
        } else if (type == GGUF_TYPE_INT32 || type == GGUF_TYPE_UINT32) {
            const auto * data = static_cast<const int32_t *>(gguf_get_arr_data(file_, id));
            std::copy(data, data + n, values.begin());
        } else {
            wrong_type(key, "an array of integers");
        }
        return values;
    }

    // A flag a layer; all false when absent.
    std::vector<bool> pattern(const char * key, int32_t n_layer) const {
        const std::vector<int32_t> flags = integers(key);
        if (has(key) && flags.size() != static_cast<size_t>(n_layer)) {
            fail(PD2_ERROR_HEAD_FORMAT, "%s: %s covers %zu layers, the head has %d; convert the head again",
                 path_.c_str(), key, flags.size(), n_layer);
        }
        std::vector<bool> result(n_layer, false);
        std::copy(flags.begin(), flags.end(), result.begin());
        return result;
    }

    bool has(const char * key) const { return gguf_find_key(file_, key) >= 0; }

    size_t array_length(const char * key) const {
        const int64_t id = gguf_find_key(file_, key);
        return id >= 0 && gguf_get_kv_type(file_, id) == GGUF_TYPE_ARRAY ? gguf_get_arr_n(file_, id) : 0;
    }

  private:
    [[noreturn]] void wrong_type(const char * key, const char * wanted) const {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: %s is not %s; the file is damaged or of another format: convert the head again", path_.c_str(), key,
             wanted);
    }

    const gguf_context * file_;
    const std::string &  path_;
};

}  // namespace

int32_t HeadParams::n_sliding() const {
    return static_cast<int32_t>(std::count(sliding.begin(), sliding.end(), true));
}

bool HeadParams::is_causal(int32_t layer) const {
    return causal < 0 ? static_cast<bool>(causal_by_layer[layer]) : causal == 1;
}

HeadFile::HeadFile(const std::string & path) : path_(path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
        fail(PD2_ERROR_MODEL_FILE, "%s: no such file; give the path of the head's GGUF", path.c_str());
    }
    ggml_context *   meta   = nullptr;
    gguf_init_params params = {/*.no_alloc =*/true, /*.ctx =*/&meta};
    gguf_.reset(gguf_init_from_file(path.c_str(), params));
    meta_.reset(meta);
    if (!gguf_) {
        fail(PD2_ERROR_MODEL_FILE,
             "%s: not a readable GGUF file (truncated, damaged or another format); "
             "fetch or convert it again",
             path.c_str());
    }
    read_params();
    check_extent();
}

void HeadFile::read_params() {
    const Metadata    meta(gguf_.get(), path_);
    const std::string arch = meta.text("general.architecture");
    if (arch == "dflash-draft" || arch == "dflash_draft") {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: this is a fork's head format ('%s'); convert the original checkpoint with 'pydflash2 convert'",
             path_.c_str(), arch.c_str());
    }
    if (arch != "dflash") {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: a head's architecture is 'dflash', this file's is '%.40s'; give a DFlash head here", path_.c_str(),
             arch.c_str());
    }
    for (const char * name : {"markov_w1.weight", "hc_head_fn.weight"}) {
        if (find(name)) {
            fail(PD2_ERROR_HEAD_FORMAT, "%s: a DSpark head (tensor %s); this engine runs DFlash 1 and DFlash 2 heads",
                 path_.c_str(), name);
        }
    }

    HeadParams & p = params_;

    p.n_layer    = meta.integer("dflash.block_count", 1, kMaxLayers);
    p.n_embd     = meta.integer("dflash.embedding_length", 1, 1 << 20);
    p.n_ff       = meta.integer("dflash.feed_forward_length", 1, 1 << 24);
    p.n_head     = meta.integer("dflash.attention.head_count", 1, 1 << 16);
    p.n_head_kv  = meta.optional_integer("dflash.attention.head_count_kv", 1, 1 << 16).value_or(p.n_head);
    p.head_dim   = meta.optional_integer("dflash.attention.key_length", 1, 1 << 16).value_or(p.n_embd / p.n_head);
    p.block_size = meta.integer("dflash.block_size", 2, kMaxBlock);
    p.mask_token = meta.integer("tokenizer.ggml.mask_token_id", 0, std::numeric_limits<int32_t>::max());

    if (p.head_dim < 2 || p.head_dim % 2 != 0) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: attention heads of %d dimensions; rotary embedding needs an even number, 2 at least; convert the "
             "head again",
             path_.c_str(), p.head_dim);
    }
    const int32_t value_length =
        meta.optional_integer("dflash.attention.value_length", 1, 1 << 16).value_or(p.head_dim);
    if (value_length != p.head_dim) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: keys of %d and values of %d dimensions; DFlash heads have one size for both; convert the head again",
             path_.c_str(), p.head_dim, value_length);
    }
    if (p.n_head % p.n_head_kv != 0) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: %d attention heads are not a multiple of %d K/V heads; the file is damaged: convert the head again",
             path_.c_str(), p.n_head, p.n_head_kv);
    }

    p.rms_eps = meta.real("dflash.attention.layer_norm_rms_epsilon", kMissing);
    if (p.rms_eps == kMissing) {
        fail(PD2_ERROR_HEAD_FORMAT, "%s: dflash.attention.layer_norm_rms_epsilon is missing; convert the head again",
             path_.c_str());
    }
    p.embedding_scale       = meta.real("dflash.embedding_scale", 1, kTiny);
    p.logit_scale           = meta.real("dflash.logit_scale", 1, kTiny);
    p.soft_cap              = meta.real("dflash.final_logit_softcapping", 0);
    p.attention_scale       = meta.real("dflash.attention.scale", 0);
    p.attention_value_scale = meta.real("dflash.attention.value_scale", 0);

    const std::string activation = meta.text("dflash.hidden_activation");
    p.gelu                       = activation == "gelu" || activation == "gelu_pytorch_tanh";
    if (!p.gelu && !activation.empty() && activation != "silu") {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: activation '%.40s' is not known; DFlash heads use silu or gelu: convert the head again",
             path_.c_str(), activation.c_str());
    }

    // The file counts layer inputs (llama.cpp's way); everywhere else a tap is the layer whose output is read.
    p.taps = meta.integers("dflash.target_layers");
    if (p.taps.empty() || p.taps.size() > kMaxTaps) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: dflash.target_layers names %zu target layers, 1 to %d are possible; convert the "
             "head again",
             path_.c_str(), p.taps.size(), kMaxTaps);
    }
    for (int32_t & tap : p.taps) {
        if (tap < 1) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: dflash.target_layers holds %d; the file stores layer ids plus one, so "
                 "1 is the least; convert the head again",
                 path_.c_str(), tap);
        }
        tap -= 1;
    }

    p.window = meta.optional_integer("dflash.attention.sliding_window", 0, std::numeric_limits<int32_t>::max() / 2)
                   .value_or(0);
    p.sliding = meta.pattern("dflash.attention.sliding_window_pattern", p.n_layer);
    if ((p.window > 0) != meta.has("dflash.attention.sliding_window_pattern")) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: a window of %d positions %s a sliding_window_pattern; the file needs both or neither; convert the "
             "head again",
             path_.c_str(), p.window, p.window > 0 ? "without" : "with");
    }
    p.causal = meta.optional_integer("dflash.attention.causal", 0, 1).value_or(-1);

    // Absent: the reference decides by layer type, also where use_sliding_window took the window away; the converter
    // then says which layers those were.
    const char * by_layer = "pydflash2.attention.causal_pattern";
    p.causal_by_layer     = meta.has(by_layer) ? meta.pattern(by_layer, p.n_layer) : p.sliding;

    const ggml_tensor * selector = find("selector_predecessor.weight");
    p.version                    = selector || find("blk.0.attn_conv_base") ? 2 : 1;
    if (p.version == 2) {
        p.conv_kernel = meta.integer("dflash.conv_kernel_size", 1, 64);
        p.conv_group  = meta.integer("dflash.conv_group_size", 1, p.n_embd);
        p.rank        = meta.integer("dflash.selector_rank", 1, 1 << 16);
        p.top_k       = meta.integer("dflash.selector_top_k", 1, 1024);
        if (p.n_embd % p.conv_group != 0) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: hidden size %d is not a multiple of the convolution's group size %d; convert the head again",
                 path_.c_str(), p.n_embd, p.conv_group);
        }
        if (static_cast<int64_t>(p.block_size) * p.top_k * p.top_k > kMaxScores) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: a block of %d rows with %d candidates each has more transition scores than memory is spent on "
                 "here; the file is damaged or of another format: convert the head again",
                 path_.c_str(), p.block_size, p.top_k);
        }
    }

    const ggml_tensor * embedding = find("token_embd.weight");
    const ggml_tensor * output    = find("output.weight");
    const ggml_tensor * d2t       = find("d2t");
    p.own_embedding               = embedding != nullptr;
    p.own_output                  = output != nullptr || embedding != nullptr;
    p.n_vocab                     = static_cast<int32_t>(selector    ? selector->ne[1]
                                                         : embedding ? embedding->ne[1]
                                                                     : meta.array_length("tokenizer.ggml.tokens"));
    if (p.own_output) {
        p.n_draft_vocab = static_cast<int32_t>(output ? output->ne[1] : embedding->ne[1]);
    }
    if (d2t && !output) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: a reduced vocabulary (d2t) without its own output.weight; convert the head again", path_.c_str());
    }
    if (p.own_output && !d2t && p.n_vocab > 0 && p.n_draft_vocab != p.n_vocab) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: the output head has %d rows for %d token ids, and no d2t table maps them; convert the head again",
             path_.c_str(), p.n_draft_vocab, p.n_vocab);
    }
    if (p.version == 2 && p.top_k > (p.own_output ? p.n_draft_vocab : p.n_vocab)) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: %d candidates a position out of %d token ids; the file is damaged: convert the head again",
             path_.c_str(), p.top_k, p.own_output ? p.n_draft_vocab : p.n_vocab);
    }

    const ggml_tensor * fc = find("fc.weight");
    if (!fc) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: the tensor fc.weight is missing; the file is incomplete: convert the head again", path_.c_str());
    }
    p.n_feature = static_cast<int32_t>(fc->ne[0]);
    if (p.n_feature % static_cast<int32_t>(p.taps.size()) != 0) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: fc reads %d features, which %zu taps cannot make up evenly; convert the head again", path_.c_str(),
             p.n_feature, p.taps.size());
    }
    read_rope();
}

void HeadFile::read_rope() {
    const Metadata meta(gguf_.get(), path_);
    HeadParams &   p = params_;

    p.n_rot = meta.optional_integer("dflash.rope.dimension_count", 2, p.head_dim).value_or(p.head_dim);
    if (p.n_rot % 2 != 0) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: %d rotated dimensions; rotary embedding needs an even number; convert the head again", path_.c_str(),
             p.n_rot);
    }
    p.rope_base = meta.real("dflash.rope.freq_base", kMissing, kTiny);
    if (p.rope_base == kMissing) {
        fail(PD2_ERROR_HEAD_FORMAT, "%s: dflash.rope.freq_base is missing; convert the head again", path_.c_str());
    }
    p.rope_context = meta.optional_integer("dflash.context_length", 1, std::numeric_limits<int32_t>::max()).value_or(0);

    const std::string scaling = meta.text("dflash.rope.scaling.type");
    const float       factor  = meta.real("dflash.rope.scaling.factor", 1, kTiny);
    if (scaling == "linear" || scaling == "yarn") {
        p.rope_scale = 1 / factor;
        if (scaling == "yarn") {
            p.yarn_ext_factor  = meta.real("dflash.rope.scaling.yarn_ext_factor", 1);
            p.yarn_attn_factor = meta.real("dflash.rope.scaling.yarn_attn_factor", 1, kTiny);
            p.yarn_beta_fast   = meta.real("dflash.rope.scaling.yarn_beta_fast", 32, kTiny);
            p.yarn_beta_slow   = meta.real("dflash.rope.scaling.yarn_beta_slow", 1, kTiny);
            p.rope_context =
                meta.integer("dflash.rope.scaling.original_context_length", 1, std::numeric_limits<int32_t>::max());
        }
    } else if (!scaling.empty() && scaling != "none") {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: rope scaling '%.40s' is not known; linear and yarn are: convert the head again", path_.c_str(),
             scaling.c_str());
    }

    const std::vector<int32_t> sections = meta.integers("dflash.rope.dimension_sections");
    p.mrope                             = !sections.empty();
    if (p.mrope) {
        if (sections.size() < 3 || sections.size() > 4) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: dflash.rope.dimension_sections has %zu numbers, 3 or 4 are possible; convert the head again",
                 path_.c_str(), sections.size());
        }
        std::copy(sections.begin(), sections.end(), p.rope_sections);
        // The fourth section counts nothing in text: ggml asserts that another one is there.
        const int64_t total = std::accumulate(sections.begin(), sections.end(), int64_t{0});
        if (*std::min_element(sections.begin(), sections.end()) < 0 || total > p.n_rot / 2 ||
            std::all_of(sections.begin(), sections.begin() + 3, [](int32_t section) { return section == 0; })) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: dflash.rope.dimension_sections does not divide %d rotated pairs; convert the head again",
                 path_.c_str(), p.n_rot / 2);
        }
    }
}

void HeadFile::check_extent() const {
    std::error_code error;
    const uint64_t  size = std::filesystem::file_size(path_, error);
    const uint64_t  data = gguf_get_data_offset(gguf_.get());
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i) {
        const uint64_t offset = gguf_get_tensor_offset(gguf_.get(), i);
        const uint64_t bytes  = gguf_get_tensor_size(gguf_.get(), i);
        if (error || data > size || offset > size - data || bytes > size - data - offset) {
            fail(PD2_ERROR_MODEL_FILE,
                 "%s: the file ends before tensor %s does (%llu bytes); it was cut short, fetch it "
                 "again",
                 path_.c_str(), gguf_get_tensor_name(gguf_.get(), i), static_cast<unsigned long long>(size));
        }
    }
}

const ggml_tensor * HeadFile::find(const std::string & name) const {
    return ggml_get_tensor(meta_.get(), name.c_str());
}

const ggml_tensor * HeadFile::claim(const std::string & name, int64_t ne0, int64_t ne1, int64_t ne2) {
    const ggml_tensor * tensor = find(name);
    if (!tensor) {
        fail(PD2_ERROR_HEAD_FORMAT, "%s: the tensor %s is missing; the file is incomplete, convert the head again",
             path_.c_str(), name.c_str());
    }
    if (tensor->ne[0] != ne0 || tensor->ne[1] != ne1 || tensor->ne[2] != ne2 || tensor->ne[3] != 1) {
        fail(PD2_ERROR_HEAD_FORMAT,
             "%s: %s has shape [%lld, %lld, %lld], the metadata ask for [%lld, %lld, %lld]; convert the head again",
             path_.c_str(), name.c_str(), static_cast<long long>(tensor->ne[0]), static_cast<long long>(tensor->ne[1]),
             static_cast<long long>(tensor->ne[2]), static_cast<long long>(ne0), static_cast<long long>(ne1),
             static_cast<long long>(ne2));
    }
    claimed_.insert(name);
    return tensor;
}

void HeadFile::refuse_unclaimed() const {
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i) {
        const char * name = gguf_get_tensor_name(gguf_.get(), i);
        if (claimed_.count(name) == 0) {
            fail(PD2_ERROR_HEAD_FORMAT,
                 "%s: the tensor %s belongs to no part of a DFlash head known here; running without it would draft "
                 "wrongly, so the file is refused; update pydflash2 or use a published DFlash 1 or 2 head",
                 path_.c_str(), name);
        }
    }
}

bool read_at(FILE * file, uint64_t offset, void * destination, size_t bytes) {
#ifdef _WIN32
    const bool found = _fseeki64(file, static_cast<int64_t>(offset), SEEK_SET) == 0;
#else
    const bool found = fseeko(file, static_cast<off_t>(offset), SEEK_SET) == 0;
#endif
    return found && std::fread(destination, 1, bytes, file) == bytes;
}

void HeadFile::read(const ggml_tensor * tensor, void * destination) const {
    const int64_t id     = gguf_find_tensor(gguf_.get(), tensor->name);
    const size_t  offset = gguf_get_data_offset(gguf_.get()) + gguf_get_tensor_offset(gguf_.get(), id);
    const size_t  bytes  = ggml_nbytes(tensor);

    const FilePtr file(std::fopen(path_.c_str(), "rb"));
    if (!file || !read_at(file.get(), offset, destination, bytes)) {
        fail(PD2_ERROR_MODEL_FILE, "%s: tensor %s could not be read; check the disk and fetch the file again",
             path_.c_str(), tensor->name);
    }
}

}  // namespace pd2
