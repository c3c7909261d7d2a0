#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace pd2 {

void fail(pd2_status status, const char * format, ...) {
    char    message[1024];
    va_list args;
    va_start(args, format);
    std::vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    throw Error(status, message);
}

}  // namespace pd2
