#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace pd2 {

void fail(pd2_status status, const char * format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int   length = std::vsnprintf(nullptr, 0, format, args);
    std::string message(static_cast<size_t>(length > 0 ? length : 0), '\0');
    std::vsnprintf(message.data(), message.size() + 1, format, again);
    va_end(again);
    va_end(args);
    throw Error(status, message);
}

}  // namespace pd2
