// llama.cpp's translation ends in fprintf(stderr, ...) when it leaves out a pattern. It is compiled into this file, where
// that call means the function below: what it says becomes an error.
#include "json_schema.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common.h"
#include "error.h"

namespace {

// A document this deep is no schema that somebody wrote, and the translation recurses.
constexpr int kMaxDepth = 256;

thread_local std::string * left_out = nullptr;  // where the translation under way says what it could not do

[[maybe_unused]] int note_left_out(FILE *, const char * format, ...) PD2_PRINTF(2, 3);
[[maybe_unused]] int note_left_out(FILE *, const char * format, ...) {
    char    line[1024];
    va_list args;
    va_start(args, format);
    const int n = std::vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (left_out) {
        *left_out += line;
    }
    return n;
}

int nesting_depth(const std::string & json) {
    int  depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < json.size(); ++i) {
        const char c = json[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            deepest = std::max(deepest, ++depth);
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return deepest;
}

// "WARNING: JSON schema conversion was incomplete: pattern ..." and "JSON schema conversion failed:\n..." -> the rest
std::string without_prefix(const std::string & message) {
    for (const char * prefix : {"conversion was incomplete: ", "conversion failed:\n"}) {
        const size_t at = message.find(prefix);
        if (at != std::string::npos) {
            return without_prefix(message.substr(at + std::string(prefix).size()));
        }
    }
    const size_t end = message.find_last_not_of(" \n");
    return end == std::string::npos ? message : message.substr(0, end + 1);
}

}  // namespace

#define fprintf note_left_out
#include "json-schema-to-grammar.cpp"
#undef fprintf

// common/common.h declares these for the translation; common.cpp, which defines them, would bring all of `common`.

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string joined;
    for (size_t i = 0; i < values.size(); ++i) {
        joined += (i > 0 ? separator : "") + values[i];
    }
    return joined;
}

std::vector<std::string> string_split(const std::string & text, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t                   start = 0;
    for (size_t at; (at = text.find(delimiter, start)) != std::string::npos; start = at + delimiter.size()) {
        parts.push_back(text.substr(start, at - start));
    }
    parts.push_back(text.substr(start));
    return parts;
}

std::string string_repeat(const std::string & text, size_t n) {
    std::string repeated;
    for (size_t i = 0; i < n; ++i) {
        repeated += text;
    }
    return repeated;
}

namespace pd2 {

std::string json_schema_to_gbnf(const std::string & schema) {
    if (nesting_depth(schema) > kMaxDepth) {
        fail(PD2_ERROR_ARGUMENT, "the JSON schema is nested more than %d levels deep: refer to shared parts with $ref",
             kMaxDepth);
    }
    std::string warning;
    left_out = &warning;
    try {
        const std::string grammar = json_schema_to_grammar(common_json::parse(schema), true);
        left_out                  = nullptr;
        if (warning.empty()) {
            return grammar;
        }
        warning = without_prefix(warning);
    } catch (const std::exception & error) {  // std::bad_alloc too: only absurd counts lead there
        left_out = nullptr;
        warning  = without_prefix(error.what());
    }
    fail(PD2_ERROR_ARGUMENT, "the JSON schema cannot be made into a grammar: %s", warning.c_str());
}

}  // namespace pd2
