// Text <-> tokens, by the target's own tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"

namespace pd2 {

std::vector<int32_t> tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                              bool parse_special);

std::string token_bytes(const llama_vocab * vocab, int32_t token, bool special);

// See Target.
std::vector<int32_t> ranked_tokens(const llama_vocab * vocab);

}  // namespace pd2
