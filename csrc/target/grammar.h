// What must hold of a user's grammar before llama.cpp's sampler may see it. llama.cpp's own checks write to stderr, and
// some texts make it loop, overflow the stack or take seconds for a token.
#pragma once

#include <string>

struct llama_vocab;

namespace pd2 {

// Throws Error(PD2_ERROR_ARGUMENT) that says what is wrong and where, unless llama_sampler_init_grammar(vocab, gbnf,
// "root") takes the text and can apply it. Takes a fraction of a second whatever the text.
void check_grammar(const std::string & gbnf, const llama_vocab * vocab);

}  // namespace pd2
