// The one source of chance of a text: seeded with it, the same on every platform.
#pragma once

#include <cstdint>
#include <random>

namespace pd2 {

class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}

    // In [0, 1), with 53 random bits. (std::uniform_real_distribution may differ between libraries.)
    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  private:
    std::mt19937_64 engine_;  // the standard fixes its output
};

}  // namespace pd2
