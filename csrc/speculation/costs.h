// What a step of a given size takes on this machine, learned from samples that are noisy: others use it too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pd2 {

// Seconds by size, 1 .. n. Never falls with the size.
class CostCurve {
  public:
    // growth: what each further unit is thought to cost, as a part of the first, while one size alone is known.
    CostCurve(int32_t n, double growth);

    // Seconds, above 0 and finite; between, before and beyond the sizes that are known, an estimate. Units of the first
    // size when nothing is known.
    double at(int32_t size) const;

    int32_t n_samples(int32_t size) const;
    bool    empty() const { return tick_ == 0; }

    // Times that are not positive numbers say nothing and are ignored.
    void sample(int32_t size, double seconds);

    // As a calibration measured it: replaces what is known of the size, with the weight of a few samples.
    void set(int32_t size, double seconds);

    std::vector<std::pair<int32_t, double>> points() const;  // what is known: size, seconds

  private:
    struct Sample {
        double   value;  // log of the seconds
        uint64_t tick;
    };
    struct Point {
        std::vector<Sample> samples;    // oldest first
        double              value = 0;  // typical of the samples
    };

    void add(Point & point, double value);
    bool valid(int32_t size, double seconds) const;
    void rebuild();

    const double        growth_;
    std::vector<Point>  points_;  // by size
    std::vector<double> curve_;   // by size: seconds
    uint64_t            tick_ = 0;
};

// One verification by its rows, and one draft of the head by its width.
class Costs {
  public:
    explicit Costs(int32_t max_width);

    double verify(int32_t rows) const { return verify_.at(rows); }
    double draft(int32_t width) const;

    CostCurve &       verify_curve() { return verify_; }
    CostCurve &       draft_curve() { return draft_; }
    const CostCurve & verify_curve() const { return verify_; }
    const CostCurve & draft_curve() const { return draft_; }

  private:
    CostCurve verify_;
    CostCurve draft_;
};

}  // namespace pd2
