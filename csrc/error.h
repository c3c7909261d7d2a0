// The one exception type that the rooms of csrc/ throw; api.cpp turns it into a pd2_status and a message.
#pragma once

#include <stdexcept>
#include <string>

#include "pydflash2.h"

#if defined(__GNUC__)
#define PD2_PRINTF(format_at, arguments_at) __attribute__((format(printf, format_at, arguments_at)))
#else
#define PD2_PRINTF(format_at, arguments_at)
#endif

namespace pd2 {

struct Error : std::runtime_error {
    Error(pd2_status status, const std::string & message) : std::runtime_error(message), status(status) {}

    pd2_status status;
};

// printf-style message; the whole sentence for the user: what failed, why, one thing to do.
[[noreturn]] void fail(pd2_status status, const char * format, ...) PD2_PRINTF(2, 3);

}  // namespace pd2
