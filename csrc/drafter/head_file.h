// A head's GGUF file: its metadata as HeadParams, its tensors' names, shapes and places. Reads no weights.
#pragma once

#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "drafter.h"
#include "gguf.h"

namespace pd2 {

struct GgufFree {
    void operator()(gguf_context * file) const { gguf_free(file); }
};

struct GgmlFree {
    void operator()(ggml_context * context) const { ggml_free(context); }
};

struct FileClose {
    void operator()(FILE * file) const { std::fclose(file); }
};

using FilePtr    = std::unique_ptr<FILE, FileClose>;
using GgufPtr    = std::unique_ptr<gguf_context, GgufFree>;
using ContextPtr = std::unique_ptr<ggml_context, GgmlFree>;

// False where the file is shorter, or cannot be read.
bool read_at(FILE * file, uint64_t offset, void * destination, size_t bytes);

class HeadFile {
  public:
    explicit HeadFile(const std::string & path);

    const std::string & path() const { return path_; }
    const HeadParams &  params() const { return params_; }

    // The file's own description of a tensor (shape and type, no data), or nullptr.
    const ggml_tensor * find(const std::string & name) const;

    // Claims a tensor: it must be there and have this shape. refuse_unclaimed() names those nobody claimed.
    const ggml_tensor * claim(const std::string & name, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1);
    void                refuse_unclaimed() const;

    // Reads a tensor's bytes into memory of ggml_nbytes.
    void read(const ggml_tensor * tensor, void * destination) const;

  private:
    void read_params();
    void read_rope();
    void check_extent() const;

    std::string           path_;
    GgufPtr               gguf_;
    ContextPtr            meta_;
    HeadParams            params_;
    std::set<std::string> claimed_;
};

}  // namespace pd2
