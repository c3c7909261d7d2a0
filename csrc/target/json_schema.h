// JSON schemas as grammars: llama.cpp's own translation, in terms of which its grammar sampler's rules were written.
#pragma once

#include <string>

namespace pd2 {

// The GBNF text, with the rule `root`, that matches JSON documents of the schema. Throws Error(PD2_ERROR_ARGUMENT) for
// what is no JSON, and where the translation fails or would leave out a part of the schema that it knows. Keywords that
// it does not know are not looked at: pydflash2/json_schema.py refuses those beforehand.
std::string json_schema_to_gbnf(const std::string & schema);

}  // namespace pd2
