#pragma once

#include <memory>
#include <vector>

#include "llama-cpp.h"
#include "streams.h"
#include "target.h"

namespace pd2 {

// What streams share with the target they belong to.
struct StreamsOf {
    llama_model &                   model;
    TargetParams                    params;
    std::vector<ggml_backend_dev_t> devices;
    int32_t                         n_threads;
    int32_t                         batch_size;
};

// `n` streams of `size` tokens. Throws PD2_ERROR_ARGUMENT for numbers out of range, PD2_ERROR_MEMORY.
std::unique_ptr<Streams> make_streams(const StreamsOf & target, int32_t n, int32_t size);

}  // namespace pd2
