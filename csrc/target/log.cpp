#include "log.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "llama.h"

namespace pd2 {

namespace {

constexpr size_t kMaxLines  = 4096;
constexpr size_t kMaxReason = 400;  // characters; a damaged file's names can be as long as the file

struct Line {
    int32_t     level;
    std::string text;
};

struct Log {
    std::mutex       mutex;
    std::deque<Line> lines;
    std::string      first_error;
    Line             open = {GGML_LOG_LEVEL_INFO, ""};  // written so far, its end has not come yet

    void close_line() {
        if (open.text.empty()) {
            return;
        }
        if (open.level == GGML_LOG_LEVEL_ERROR && first_error.empty()) {
            first_error = open.text;
        }
        lines.push_back(open);
        if (lines.size() > kMaxLines) {
            lines.pop_front();
        }
        open.text.clear();
    }
};

Log & log() {
    static Log * instance = new Log;  // never freed: back ends log while the process ends
    return *instance;
}

void on_log(ggml_log_level level, const char * text, void *) {
    Log &                             target = log();
    const std::lock_guard<std::mutex> lock(target.mutex);

    if (level != GGML_LOG_LEVEL_CONT) {
        target.close_line();
        target.open.level = level == GGML_LOG_LEVEL_NONE ? GGML_LOG_LEVEL_INFO : level;
    }
    for (const char * c = text; *c != '\0'; ++c) {
        if (*c == '\n') {
            target.close_line();
        } else {
            target.open.text += *c;
        }
    }
}

// "llama_model_load: error loading model: ..." -> "error loading model: ..."
std::string without_function(const std::string & line) {
    const size_t colon = line.find(": ");
    const bool   named = colon != std::string::npos && line.find(' ') > colon;
    return named ? line.substr(colon + 2) : line;
}

}  // namespace

void log_install() {
    static std::once_flag once;
    std::call_once(once, [] {
#if !defined(_WIN32)
        // A fork while another thread logs would leave the child a lock that nobody opens.
        pthread_atfork([] { log().mutex.lock(); }, [] { log().mutex.unlock(); }, [] { log().mutex.unlock(); });
#endif
        llama_log_set(on_log, nullptr);
    });
}

int32_t log_next(int32_t & level, char * line, int32_t size) {
    Log &                             source = log();
    const std::lock_guard<std::mutex> lock(source.mutex);
    if (source.lines.empty()) {
        return -1;
    }
    const Line next = std::move(source.lines.front());
    source.lines.pop_front();
    level = next.level;

    const auto length = static_cast<int32_t>(next.text.size());
    if (line != nullptr && size > 0) {
        const int32_t n = std::min(length, size - 1);
        std::memcpy(line, next.text.data(), n);
        line[n] = '\0';
    }
    return length;
}

std::string log_first_error() {
    Log &                             source = log();
    const std::lock_guard<std::mutex> lock(source.mutex);
    const std::string                 error = without_function(source.first_error);
    return error.size() <= kMaxReason ? error : error.substr(0, kMaxReason) + "...";
}

void log_forget_errors() {
    Log &                             source = log();
    const std::lock_guard<std::mutex> lock(source.mutex);
    source.close_line();
    source.first_error.clear();
}

std::string log_reason() {
    const std::string reason  = log_first_error();
    const std::string texts[] = {"basic_string::", "vector::", "map::at", "_Map_base::at",
                                 "stoi"};  // C++ library's own
    for (const std::string & text : texts) {
        const size_t at = reason.find(text);
        if (at != std::string::npos) {
            return reason.substr(0, at) + "a value is out of range";
        }
    }
    return reason.empty() ? "llama.cpp gave no reason" : reason;
}

pd2_status log_status(const std::string & reason, pd2_status otherwise) {
    return reason.find("alloc") != std::string::npos ? PD2_ERROR_MEMORY : otherwise;
}

}  // namespace pd2
