// The one source of chance of a text: seeded with it, the same on every platform.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace pd2 {

class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}

    // In [0, 1), with 53 random bits. (std::uniform_real_distribution may differ between libraries.)
    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  private:
    std::mt19937_64 engine_;  // the standard fixes its output
};

// Where `left` falls when weights are laid end to end. What rounding leaves at the end goes to the last that has any.
template <typename Weight>
size_t index_at(const std::vector<Weight> & weights, double left) {
    size_t last = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const auto weight = static_cast<double>(weights[i]);
        if (weight > 0) {
            last = i;
            if (left < weight) {
                break;
            }
            left -= weight;
        }
    }
    return last;
}

// An index, with the probability weights[i] / total.
template <typename Weight>
size_t draw_index(const std::vector<Weight> & weights, double total, Random & random) {
    return index_at(weights, random.uniform() * total);
}

}  // namespace pd2
