#include "draft_vocabulary.h"

#include <algorithm>

#include "error.h"

namespace pd2 {
namespace {

// A part of the rows, for tokens of the text that are not among the frequent ones. The demo pair's acceptance length with 1,024 of
// 4,096 tokens is 0.9985 of the whole vocabulary's with a quarter of them, 0.997 with a sixteenth.
constexpr int32_t kSpareShare = 4;

constexpr int32_t kLeast = 1024, kMost = 32768;

// All files of a target whose first is name-00001-of-00003.gguf, as llama.cpp names them; else the one.
std::vector<std::string> files_of(const std::string & path) {
    const std::string end = ".gguf", first = "-00001-of-";
    const size_t      digits = 5;
    const size_t      length = first.size() + digits + end.size();
    const size_t      at     = path.size() < length ? std::string::npos : path.size() - length;
    if (at == std::string::npos || path.compare(at, first.size(), first) != 0) {
        return {path};
    }
    const std::string total = path.substr(at + first.size(), digits);
    if (total.find_first_not_of("0123456789") != std::string::npos) {
        return {path};
    }
    std::vector<std::string> files;
    for (int i = 1; i <= std::stoi(total); ++i) {
        std::string number = std::to_string(i);
        number.insert(0, digits - number.size(), '0');
        files.push_back(path.substr(0, at) + "-" + number + "-of-" + total + end);
    }
    return files;
}

}  // namespace

DraftVocabulary::DraftVocabulary(const Source & source, const std::vector<int32_t> & ranked, int32_t n,
                                 ggml_backend_dev_t device)
    : path_(source.path),
      row_size_(ggml_row_size(source.output->type, source.output->ne[0])),
      source_bias_(source.bias),
      token_of_(ranked.begin(), ranked.begin() + n),
      row_of_(static_cast<size_t>(source.output->ne[1]), -1),
      first_spare_(n == source.output->ne[1] ? n : n - std::max(1, n / kSpareShare)),
      next_spare_(first_spare_),
      spares_(ranked.begin() + first_spare_, ranked.begin() + n) {
    find_rows(source);
    context_ = new_context(4);
    output_  = ggml_new_tensor_2d(context_.get(), source.output->type, source.output->ne[0], n);
    ids_     = first_spare_ < n ? ggml_new_tensor_2d(context_.get(), GGML_TYPE_I32, 1, n) : nullptr;
    scale_   = source.scale ? ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, 1) : nullptr;
    bias_    = source.bias ? ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, n) : nullptr;
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(device)));
    if (!buffer_) {
        fail(PD2_ERROR_MEMORY, "no memory on %s for a draft vocabulary of %d tokens; ask for fewer",
             ggml_backend_dev_name(device), n);
    }
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);

    // Ids are mostly in order, and then so are the rows in the file. The graph wants ids, whatever their order.
    std::sort(token_of_.begin(), token_of_.begin() + first_spare_);
    for (int32_t row = 0; row < n;) {
        int32_t run = 1;
        while (row + run < n && run < 1024 &&
               token_of_[static_cast<size_t>(row + run)] == token_of_[static_cast<size_t>(row)] + run) {
            ++run;
        }
        staging_.resize(static_cast<size_t>(run) * row_size_);
        read_rows(token_of_[static_cast<size_t>(row)], run, staging_.data());
        ggml_backend_tensor_set(output_, staging_.data(), static_cast<size_t>(row) * row_size_, staging_.size());
        row += run;
    }
    for (int32_t row = 0; row < n; ++row) {
        row_of_[static_cast<size_t>(token_of_[static_cast<size_t>(row)])] = row;
    }
    if (ids_) {
        ggml_backend_tensor_set(ids_, token_of_.data(), 0, ggml_nbytes(ids_));
    }
    if (scale_) {
        float value = 1;
        ggml_backend_tensor_get(source.scale, &value, 0, sizeof(value));
        ggml_backend_tensor_set(scale_, &value, 0, sizeof(value));
    }
    if (bias_) {
        std::vector<float> all(row_of_.size()), own;
        ggml_backend_tensor_get(source_bias_, all.data(), 0, all.size() * sizeof(float));
        for (const int32_t token : token_of_) {
            own.push_back(all[static_cast<size_t>(token)]);
        }
        ggml_backend_tensor_set(bias_, own.data(), 0, ggml_nbytes(bias_));
    }
}

// A quarter: what is left to read of the rows is little then beside the head's own weights, and nearly no draft is lost.
int32_t DraftVocabulary::choose(int32_t n_vocab) {
    const int32_t n = std::clamp(n_vocab / 4, kLeast, kMost);
    return n_vocab >= 2 * n ? n : n_vocab;
}

void DraftVocabulary::find_rows(const Source & source) {
    const auto find = [&](const char * name) {
        for (const std::string & path : files_of(source.path)) {
            const gguf_init_params params = {/*.no_alloc =*/true, /*.ctx =*/nullptr};
            const GgufPtr          gguf(gguf_init_from_file(path.c_str(), params));
            const int64_t          id = gguf ? gguf_find_tensor(gguf.get(), name) : -1;
            if (id < 0) {
                continue;
            }
            if (gguf_get_tensor_type(gguf.get(), id) == source.output->type &&
                gguf_get_tensor_size(gguf.get(), id) == static_cast<uint64_t>(source.output->ne[1]) * row_size_) {
                path_   = path;
                offset_ = gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), id);
                file_.reset(std::fopen(path.c_str(), "rb"));
            }
            return true;
        }
        return false;
    };
    const bool found = find("output.weight") || find("token_embd.weight");  // tied targets have the latter alone
    if (found && file_) {
        return;
    }
    fail(PD2_ERROR_MODEL_FILE,
         "'%s' does not hold the target's output table as it is loaded, so no draft vocabulary can be taken from "
         "it; load with draft_vocabulary=\"full\", and the head beside the target",
         source.path.c_str());
}

void DraftVocabulary::read_rows(int32_t first, int32_t n, uint8_t * rows) {
    const uint64_t offset = offset_ + static_cast<uint64_t>(first) * row_size_;
    if (!read_at(file_.get(), offset, rows, static_cast<size_t>(n) * row_size_)) {
        fail(PD2_ERROR_MODEL_FILE, "'%s' could not be read for the draft vocabulary; check the disk", path_.c_str());
    }
}

void DraftVocabulary::replace(int32_t row, int32_t token) {
    const auto i = static_cast<size_t>(row);
    staging_.resize(row_size_);
    read_rows(token, 1, staging_.data());
    row_of_[static_cast<size_t>(token_of_[i])] = -1;
    ggml_backend_tensor_set(output_, staging_.data(), i * row_size_, row_size_);

    token_of_[i]                        = token;
    row_of_[static_cast<size_t>(token)] = row;
    ggml_backend_tensor_set(ids_, &token, i * sizeof(int32_t), sizeof(int32_t));
    if (bias_) {
        float value = 0;
        ggml_backend_tensor_get(source_bias_, &value, static_cast<size_t>(token) * sizeof(float), sizeof(float));
        ggml_backend_tensor_set(bias_, &value, i * sizeof(float), sizeof(float));
    }
}

void DraftVocabulary::begin() {
    // The text's tokens leave first: one of them may be the spare of another row.
    for (int32_t i = 0; i < n_taken_; ++i) {
        row_of_[static_cast<size_t>(token_of_[static_cast<size_t>(first_spare_ + i)])] = -1;
    }
    for (int32_t i = 0; i < n_taken_; ++i) {
        token_of_[static_cast<size_t>(first_spare_ + i)] = spares_[static_cast<size_t>(i)];
        replace(first_spare_ + i, spares_[static_cast<size_t>(i)]);
    }
    n_taken_    = 0;
    next_spare_ = first_spare_;
}

void DraftVocabulary::take_in(const int32_t * tokens, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        if (row_of_[static_cast<size_t>(tokens[i])] >= 0) {
            continue;
        }
        const int32_t row = next_spare_;
        next_spare_       = row + 1 < static_cast<int32_t>(token_of_.size()) ? row + 1 : first_spare_;
        n_taken_          = std::max(n_taken_, row + 1 - first_spare_);
        replace(row, tokens[i]);
    }
}

}  // namespace pd2
