// The second half of check_grammar: the rules as llama.cpp's parser understood them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "llama-grammar.h"

namespace pd2 {

// line_of: where a rule is defined, 0 for none of the user's. Throws Error(PD2_ERROR_ARGUMENT).
void check_grammar_rules(const llama_grammar_parser & parser, const llama_vocab * vocab,
                         const std::function<size_t(const std::string & rule)> & line_of);

}  // namespace pd2
