// How the target makes a Sampler: apart from sampler.h, which shows nothing of llama.cpp.
#pragma once

#include "llama.h"
#include "sampler.h"

namespace pd2 {

// Throws PD2_ERROR_ARGUMENT for parameters out of range and for a grammar that cannot be read.
std::unique_ptr<Sampler> make_sampler(const llama_vocab * vocab, const SamplingParams & params, int32_t context_size);

}  // namespace pd2
