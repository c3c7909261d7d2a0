// What llama.cpp and ggml have to say, kept until somebody reads it: their threads cannot call into Python.
#pragma once

#include <cstdint>
#include <string>

#include "pydflash2.h"

namespace pd2 {

void log_install();  // idempotent; before the first call into llama.cpp

// The oldest line not yet read; see pd2_log_next.
int32_t log_next(int32_t & level, char * line, int32_t size);

// The first error line since log_forget_errors(), without its function's name: llama.cpp names the cause first and then
// repeats on every level that it failed.
std::string log_first_error();
void        log_forget_errors();

// That line as the reason a message gives, and the status it stands for: PD2_ERROR_MEMORY, or else `otherwise`.
std::string log_reason();
pd2_status  log_status(const std::string & reason, pd2_status otherwise);

}  // namespace pd2
