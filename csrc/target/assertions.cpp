#include "assertions.h"

#include <cstdio>
#include <mutex>
#include <stdexcept>

#include "ggml.h"

extern "C" void ggml_print_backtrace(void);  // of ggml's own, which no header of its interface names

namespace pd2 {

namespace {

thread_local int         depth = 0;
thread_local std::string first_failure;

// "/home/me/src/llama-model.cpp:12: GGML_ASSERT(x) failed" -> "llama-model.cpp:12: GGML_ASSERT(x) failed"
std::string without_folder(const std::string & message) {
    const size_t end   = message.find(": ");
    const size_t slash = message.find_last_of("/\\", end);
    return slash == std::string::npos || end == std::string::npos ? message : message.substr(slash + 1);
}

// ggml ends the process when this returns.
void on_assertion(const char * message) {
    if (depth > 0) {
        if (first_failure.empty()) {
            first_failure = without_folder(message);
        }
        throw std::runtime_error(without_folder(message));
    }
    std::fprintf(stderr, "%s\n", message);
    ggml_print_backtrace();
}

}  // namespace

AssertionGuard::AssertionGuard() {
    static std::once_flag once;
    std::call_once(once, [] { ggml_set_abort_callback(on_assertion); });
    if (depth++ == 0) {
        first_failure.clear();
    }
}

AssertionGuard::~AssertionGuard() {
    --depth;
}

const std::string & AssertionGuard::failed() {
    return first_failure;
}

}  // namespace pd2
