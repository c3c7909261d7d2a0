// How long a step took.
#pragma once

#include <chrono>

namespace pd2 {

class Watch {
  public:
    // Seconds since the last call, or since the beginning.
    double lap() {
        const auto now     = std::chrono::steady_clock::now();
        const auto seconds = std::chrono::duration<double>(now - last_).count();
        last_              = now;
        return seconds;
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace pd2
