#include "row.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "vec.h"

namespace pd2 {

namespace {

constexpr size_t kLanes = 64;

// Below exp(kNothing) of the largest, a weight counts as that: a vocabulary of them is far below a float's rounding, and
// nothing is denormal.
constexpr float kNothing = -80;

// How a descent goes on where blocks cannot tell: so many steps of so many logits, then everything else at once.
constexpr int   kSteps = 20;
constexpr float kStep  = 2;

float largest_of(const float * logits, size_t n) {
    return *std::max_element(logits, logits + n);
}

// Of a whole block; marks lanes that saw a NaN. GCC and clang make vector instructions of the loops over kLanes: much shorter
// ones would be unrolled before they are looked at.
float largest_of_block(const float * logits, int32_t * nan) {
    static_assert(Row::kBlock == 4 * kLanes);
    float best[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
        const float a = logits[lane], b = logits[lane + kLanes];
        const float c = logits[lane + 2 * kLanes], d = logits[lane + 3 * kLanes];
        const float ab = a > b ? a : b, cd = c > d ? c : d;
        best[lane] = ab > cd ? ab : cd;
        nan[lane] |= (a != a) | (b != b) | (c != c) | (d != d) ? -1 : 0;
    }
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; ++lane) {
            best[lane] = best[lane + half] > best[lane] ? best[lane + half] : best[lane];
        }
    }
    return best[0];
}

bool before(const Candidate & candidate, int32_t token) {
    return candidate.token < token;
}

}  // namespace

void keep_likeliest(std::vector<Candidate> & candidates, size_t n) {
    n = std::min(n, candidates.size());
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(n), candidates.end(), likelier);
    candidates.resize(n);
}

Row::Row(const float * logits, int32_t n_vocab, std::vector<Candidate> changes)
    : logits_(logits), n_vocab_(static_cast<size_t>(n_vocab)), changes_(std::move(changes)) {
    const size_t whole = n_vocab_ / kBlock;
    largest_.resize((n_vocab_ + kBlock - 1) / kBlock);
    int32_t nan[kLanes] = {};
    for (size_t b = 0; b < whole; ++b) {
        largest_[b] = largest_of_block(logits + b * kBlock, nan);
    }
    bool is_nan = std::any_of(nan, nan + kLanes, [](int32_t lane) { return lane != 0; });
    if (whole < largest_.size()) {
        const float * last = logits + whole * kBlock;
        largest_[whole]    = largest_of(last, size(whole));
        is_nan = is_nan || std::any_of(last, last + size(whole), [](float logit) { return std::isnan(logit); });
    }
    finite_ = !is_nan && std::isfinite(largest_of(largest_.data(), largest_.size()));

    float scratch[kBlock];
    for (size_t i = 0; i < changes_.size();) {
        const size_t b = static_cast<size_t>(changes_[i].token) / kBlock;
        largest_[b]    = largest_of(block(b, scratch), size(b));
        while (i < changes_.size() && static_cast<size_t>(changes_[i].token) / kBlock == b) {
            ++i;
        }
    }
    top_ = largest_of(largest_.data(), largest_.size());
}

size_t Row::size(size_t block) const {
    return std::min(kBlock, n_vocab_ - block * kBlock);
}

const float * Row::block(size_t block, float * scratch) const {
    const float * logits = logits_ + block * kBlock;
    const int32_t end    = first(block + 1);
    auto          change = std::lower_bound(changes_.begin(), changes_.end(), first(block), before);
    if (change == changes_.end() || change->token >= end) {
        return logits;
    }
    std::copy_n(logits, size(block), scratch);
    for (; change != changes_.end() && change->token < end; ++change) {
        scratch[change->token - first(block)] = change->logit;
    }
    return scratch;
}

float Row::of(int32_t token) const {
    const auto change = std::lower_bound(changes_.begin(), changes_.end(), token, before);
    return change != changes_.end() && change->token == token ? change->logit : logits_[token];
}

int32_t Row::first_of_largest() const {
    const auto    b = static_cast<size_t>(std::find(largest_.begin(), largest_.end(), top_) - largest_.begin());
    float         scratch[kBlock];
    const float * logits = block(b, scratch);
    return first(b) + static_cast<int32_t>(std::find(logits, logits + size(b), top_) - logits);
}

float Row::reached_by(size_t n) const {
    if (n > largest_.size()) {
        return kForbidden;
    }
    std::vector<float> sorted = largest_;
    const auto         nth    = sorted.begin() + static_cast<ptrdiff_t>(n - 1);
    std::nth_element(sorted.begin(), nth, sorted.end(), std::greater<>());
    return *nth;
}

void Row::select(float from, float below, std::vector<Candidate> & selected) const {
    float scratch[kBlock];
    for (size_t b = 0; b < largest_.size(); ++b) {
        if (largest_[b] < from) {
            continue;
        }
        const float * logits = block(b, scratch);
        for (size_t i = 0, n = size(b); i < n; ++i) {
            if (logits[i] >= from && logits[i] < below) {
                selected.push_back({first(b) + static_cast<int32_t>(i), logits[i]});
            }
        }
    }
}

std::vector<Candidate> Row::likeliest(size_t n) const {
    std::vector<Candidate> candidates;
    if (n > 0) {
        select(reached_by(n), std::numeric_limits<float>::infinity(), candidates);
        keep_likeliest(candidates, n);
    }
    return candidates;
}

std::vector<double> Row::masses(float temperature) const {
    const float         scale = std::min(1 / temperature, std::numeric_limits<float>::max());
    std::vector<double> masses(largest_.size());
    float               scratch[kBlock], weights[kBlock];
    for (size_t b = 0; b < largest_.size(); ++b) {
        const float * logits = block(b, scratch);
        const size_t  n      = size(b);
        for (size_t i = 0; i < n; ++i) {
            const float exponent = (logits[i] - top_) * scale;
            weights[i]           = exponent > kNothing ? exponent : kNothing;
        }
        masses[b] = ggml_vec_soft_max_f32(static_cast<int>(n), weights, weights, 0);
    }
    return masses;
}

double Row::rest(float below, float temperature) const {
    double rest = 0;
    for (size_t b = 0; b < largest_.size(); ++b) {
        const double most = static_cast<double>(std::min(largest_[b], below)) - static_cast<double>(top_);
        rest += static_cast<double>(size(b)) * std::exp(most / static_cast<double>(temperature));
    }
    return rest;
}

bool Descent::next(std::vector<Candidate> & group) {
    group.clear();
    if (floor_ <= Row::kLowest) {
        return false;
    }
    const float below = floor_;
    if (n_ <= row_.n_blocks()) {
        floor_ = std::min(below, row_.reached_by(n_));
        n_ *= 4;
    } else if (steps_++ < kSteps) {
        floor_ = std::min(below, row_.top()) - kStep;
    } else {
        floor_ = Row::kLowest;
    }
    floor_ = std::max(floor_, Row::kLowest);
    row_.select(floor_, below, group);
    std::sort(group.begin(), group.end(), likelier);
    return true;
}

}  // namespace pd2
