#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "error.h"
#include "ggml.h"
#include "llama-ext.h"
#include "llama.h"
#include "log.h"

namespace pd2 {

namespace {

struct FileType {
    const char * name;
    llama_ftype  value;
};

constexpr FileType file_types[] = {
    {"q2_k", LLAMA_FTYPE_MOSTLY_Q2_K}, {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0}, {"q4_k_m", LLAMA_FTYPE_MOSTLY_Q4_K_M},
    {"q6_k", LLAMA_FTYPE_MOSTLY_Q6_K}, {"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
};

llama_ftype find_file_type(const std::string & name) {
    std::string known;
    for (const FileType & type : file_types) {
        if (name == type.name) {
            return type.value;
        }
        known += (known.empty() ? "" : ", ") + std::string(type.name);
    }
    fail(PD2_ERROR_ARGUMENT, "no file type is named '%s': use one of %s", name.c_str(), known.c_str());
}

ggml_type find_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        if (ggml_blck_size(type) > 0 && name == ggml_type_name(type)) {
            return type;
        }
    }
    fail(PD2_ERROR_ARGUMENT, "ggml has no tensor type named '%s'", name.c_str());
}

// Layer of a tensor, -1 for those outside the layers.
int layer_of(const std::string & name) {
    int layer = -1;
    std::sscanf(name.c_str(), "blk.%d.", &layer);
    return layer;
}

void check_plan(const pd2_quantize_geometry & geometry, const std::vector<PlannedTensor> & tensors) {
    constexpr int32_t max_layers = 512;  // LLAMA_MAX_LAYERS, on which llama.cpp asserts
    if (geometry.n_layer < 1 || geometry.n_layer > max_layers) {
        fail(PD2_ERROR_ARGUMENT, "a head of %d layers cannot be planned: llama.cpp takes 1 to %d", geometry.n_layer,
             max_layers);
    }
    if (geometry.n_embd < 1 || geometry.n_ff < 1 || geometry.n_head < 1 || geometry.n_head_kv < 1 ||
        geometry.head_dim < 1) {
        fail(PD2_ERROR_ARGUMENT,
             "sizes of a head must be positive, got n_embd %d, n_ff %d, n_head %d, n_head_kv %d, "
             "head_dim %d",
             geometry.n_embd, geometry.n_ff, geometry.n_head, geometry.n_head_kv, geometry.head_dim);
    }
    for (const PlannedTensor & tensor : tensors) {
        if (tensor.name.empty() || tensor.name.size() >= GGML_MAX_NAME) {
            fail(PD2_ERROR_ARGUMENT, "a tensor's name must have 1 to %d bytes, got '%s'", GGML_MAX_NAME - 1,
                 tensor.name.c_str());
        }
        for (const int64_t size : tensor.shape) {
            if (size < 1 || size > INT32_MAX) {
                fail(PD2_ERROR_ARGUMENT, "tensor %s has a side of %lld", tensor.name.c_str(),
                     static_cast<long long>(size));
            }
        }
    }
}

}  // namespace

uint64_t quantize(const std::string & type_name, const float * source, void * destination, int64_t n_rows,
                  int64_t n_per_row) {
    const ggml_type type = find_type(type_name);
    if (ggml_quantize_requires_imatrix(type) ||
        (!ggml_is_quantized(type) && type != GGML_TYPE_F16 && type != GGML_TYPE_BF16 && type != GGML_TYPE_F32)) {
        fail(PD2_ERROR_ARGUMENT, "%s cannot be made from floats alone: choose another type", type_name.c_str());
    }
    const int64_t block = ggml_blck_size(type);
    if (n_rows < 0 || n_per_row < 1 || n_per_row % block != 0) {
        fail(PD2_ERROR_ARGUMENT, "%lld rows of %lld values cannot become %s: a row must be a multiple of %lld values",
             static_cast<long long>(n_rows), static_cast<long long>(n_per_row), type_name.c_str(),
             static_cast<long long>(block));
    }
    const float * end = source + n_rows * n_per_row;
    const float * bad = std::find_if_not(source, end, [](float value) { return std::isfinite(value); });
    if (bad != end) {
        fail(PD2_ERROR_MODEL_FILE, "the values hold %f, which no quantised type can", static_cast<double>(*bad));
    }
    return ggml_quantize_chunk(type, source, destination, 0, n_rows, n_per_row, nullptr);
}

std::vector<const char *> quantize_plan(const std::string & file_type_name, const pd2_quantize_geometry & geometry,
                                        const std::vector<PlannedTensor> & tensors) {
    const llama_ftype file_type = find_file_type(file_type_name);
    check_plan(geometry, tensors);
    log_install();  // llama.cpp tells here which rows its first choice of type does not fit

    llama_quant_model_desc description = {};
    description.architecture           = "dflash";
    description.n_embd                 = static_cast<uint32_t>(geometry.n_embd);
    description.n_ff                   = static_cast<uint32_t>(geometry.n_ff);
    description.n_layer                = static_cast<uint32_t>(geometry.n_layer);
    description.n_head                 = static_cast<uint32_t>(geometry.n_head);
    description.n_head_kv              = static_cast<uint32_t>(geometry.n_head_kv);
    description.n_embd_head_k          = static_cast<uint32_t>(geometry.head_dim);
    description.n_embd_head_v          = static_cast<uint32_t>(geometry.head_dim);

    const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(llama_quant_model_from_metadata(&description),
                                                                          llama_model_free);
    llama_model_quantize_params                                     params = llama_model_quantize_default_params();
    params.ftype                                                           = file_type;
    const std::unique_ptr<quantize_state_impl, decltype(&llama_quant_free)> state(
        llama_quant_init(model.get(), &params), llama_quant_free);

    const size_t                                              meta_size = (tensors.size() + 1) * ggml_tensor_overhead();
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(ggml_init({meta_size, nullptr, true}), ggml_free);

    // llama-quantize walks a file by layer, then by name, and which layers get more bits depends on that order.
    using Candidate = std::pair<size_t, ggml_tensor *>;
    std::vector<Candidate> quantizable;
    for (size_t i = 0; i < tensors.size(); ++i) {
        ggml_tensor * tensor = ggml_new_tensor(context.get(), GGML_TYPE_F32, 4, tensors[i].shape.data());
        ggml_set_name(tensor, tensors[i].name.c_str());
        if (llama_quant_tensor_allows_quantization(state.get(), tensor)) {
            quantizable.emplace_back(i, tensor);
        }
    }
    std::sort(quantizable.begin(), quantizable.end(), [&](const Candidate & a, const Candidate & b) {
        const std::string & name_a = tensors[a.first].name;
        const std::string & name_b = tensors[b.first].name;
        return std::make_pair(layer_of(name_a), name_a) < std::make_pair(layer_of(name_b), name_b);
    });

    std::vector<ggml_tensor *> ordered;
    for (const Candidate & candidate : quantizable) {
        ordered.push_back(candidate.second);
    }
    std::vector<ggml_type> chosen(ordered.size());
    try {
        llama_quant_compute_types(state.get(), file_type, ordered.data(), chosen.data(), ordered.size());
    } catch (const std::exception & error) {
        fail(PD2_ERROR_NATIVE, "llama.cpp cannot choose types for %s: %s", file_type_name.c_str(), error.what());
    }

    std::vector<const char *> types(tensors.size(), nullptr);
    for (size_t i = 0; i < chosen.size(); ++i) {
        types[quantizable[i].first] = ggml_type_name(chosen[i]);
    }
    return types;
}

}  // namespace pd2
