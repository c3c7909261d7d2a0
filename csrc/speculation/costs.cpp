#include "costs.h"

#include <algorithm>
#include <cmath>

namespace pd2 {

namespace {

// Neighbouring sizes differ by a few parts in a hundred, samples by twenty: many are needed to tell what each adds.
constexpr size_t   most_samples = 48;
constexpr size_t   set_samples  = 8;    // that a calibrated value counts for
constexpr uint64_t oldest       = 512;  // samples ago: what is older goes when its size is measured again
constexpr size_t   kept_samples = 4;    // of them all the same

// A row more, while only the plain step has been measured: between a GPU's 0.01 and a CPU's 0.4.
constexpr double row_growth = 0.25;
// A draft before any was measured, in plain steps, and what a token more adds: the head's fixed part is the larger.
constexpr double draft_cost = 0.3, draft_growth = 0.05;

constexpr double shortest = 1e-9, longest = 1e6;  // seconds that are believed

// The mean of the middle half; the lower one of two: a stall is always late.
double typical(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size(), low = (n + 1) / 4, high = n == 2 ? 1 : n - low;
    double       sum = 0;
    for (size_t i = low; i < high; ++i) {
        sum += values[i];
    }
    return sum / static_cast<double>(high - low);
}

}  // namespace

CostCurve::CostCurve(int32_t n, double growth)
    : growth_(growth), points_(static_cast<size_t>(n) + 1), curve_(static_cast<size_t>(n) + 1) {
    rebuild();
}

double CostCurve::at(int32_t size) const {
    return curve_[static_cast<size_t>(std::clamp(size, 1, static_cast<int32_t>(curve_.size()) - 1))];
}

bool CostCurve::valid(int32_t size, double seconds) const {
    return size >= 1 && size < static_cast<int32_t>(points_.size()) && std::isfinite(seconds) && seconds > 0;
}

int32_t CostCurve::n_samples(int32_t size) const {
    return static_cast<int32_t>(points_[static_cast<size_t>(size)].samples.size());
}

void CostCurve::add(Point & point, double value) {
    std::vector<Sample> & samples = point.samples;
    while (samples.size() >= most_samples || (samples.size() > kept_samples && samples.front().tick + oldest < tick_)) {
        samples.erase(samples.begin());
    }
    samples.push_back({value, tick_});
    std::vector<double> values;
    for (const Sample & sample : samples) {
        values.push_back(sample.value);
    }
    point.value = typical(std::move(values));
}

void CostCurve::set(int32_t size, double seconds) {
    if (!valid(size, seconds)) {
        return;
    }
    ++tick_;
    Point & point = points_[static_cast<size_t>(size)];
    point.value   = std::log(std::clamp(seconds, shortest, longest));
    point.samples.assign(set_samples, {point.value, tick_});
    rebuild();
}

// Costs grow with the context, and with what else the machine does. A size that is not visited keeps what is known of it: should it be
// too cheap by now, it is soon chosen and measured again.
void CostCurve::sample(int32_t size, double seconds) {
    if (!valid(size, seconds)) {
        return;
    }
    Point & point = points_[static_cast<size_t>(size)];
    if (point.samples.empty() && !empty()) {  // the first run of a new size is often a slow one
        add(point, std::log(at(size)));
    }
    ++tick_;
    add(point, std::log(std::clamp(seconds, shortest, longest)));
    rebuild();
}

void CostCurve::rebuild() {
    struct Pool {
        double seconds, weight;
        size_t first, last;  // sizes
    };
    // More rows never take less time: where the samples say so, neighbours share their mean (isotonic regression).
    std::vector<Pool> pools;
    for (size_t size = 1; size < points_.size(); ++size) {
        const Point & point = points_[size];
        if (point.samples.empty()) {
            continue;
        }
        pools.push_back({std::clamp(std::exp(point.value), shortest, longest),
                         static_cast<double>(point.samples.size()), size, size});
        while (pools.size() > 1 && pools[pools.size() - 2].seconds > pools.back().seconds) {
            const Pool last = pools.back();
            pools.pop_back();
            Pool & pool  = pools.back();
            pool.seconds = (pool.seconds * pool.weight + last.seconds * last.weight) / (pool.weight + last.weight);
            pool.weight += last.weight;
            pool.last = last.last;
        }
    }
    const auto prior = [this](size_t size) { return 1 + growth_ * static_cast<double>(size - 1); };
    if (pools.empty()) {
        for (size_t size = 1; size < curve_.size(); ++size) {
            curve_[size] = prior(size);
        }
        return;
    }
    const Pool & front = pools.front();
    const Pool & back  = pools.back();
    const double slope = back.last > front.first
                             ? (back.seconds - front.seconds) / static_cast<double>(back.last - front.first)
                             : growth_ * front.seconds / prior(front.first);
    size_t       next  = 0;  // the pool that the size lies in or before
    for (size_t size = 1; size < curve_.size(); ++size) {
        next += next < pools.size() && size > pools[next].last ? 1 : 0;
        if (next == pools.size()) {
            curve_[size] = back.seconds + slope * static_cast<double>(size - back.last);
        } else if (size >= pools[next].first) {
            curve_[size] = pools[next].seconds;
        } else if (next == 0) {
            curve_[size] = front.seconds * prior(size) / prior(front.first);
        } else {
            const Pool & low  = pools[next - 1];
            const Pool & high = pools[next];
            const double part = static_cast<double>(size - low.last) / static_cast<double>(high.first - low.last);
            curve_[size]      = low.seconds + part * (high.seconds - low.seconds);
        }
    }
}

std::vector<std::pair<int32_t, double>> CostCurve::points() const {
    std::vector<std::pair<int32_t, double>> points;
    for (int32_t size = 1; size < static_cast<int32_t>(points_.size()); ++size) {
        if (n_samples(size) > 0) {
            points.emplace_back(size, at(size));
        }
    }
    return points;
}

Costs::Costs(int32_t max_width) : verify_(max_width + 1, row_growth), draft_(max_width, draft_growth) {}

double Costs::draft(int32_t width) const {
    return draft_.at(width) * (draft_.empty() ? draft_cost * verify(1) : 1);
}

}  // namespace pd2
