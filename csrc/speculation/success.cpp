#include "success.h"

#include <algorithm>
#include <cmath>

namespace pd2 {

namespace {

// Finer near 1, where a small difference is many tokens of a long draft.
constexpr std::array<float, 10> confidence_edges  = {0.1f, 0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.9f, 0.95f, 0.98f, 0.995f};
constexpr double                confidence_weight = 4;  // observations that the selector's own word counts for
constexpr double confidence_window = 128;  // observations: texts change their kind within some hundred tokens

constexpr double position_prior  = 0.6;  // before anything is known: worth a try where rows are cheap
constexpr double position_weight = 4;    // observations that the position before counts for
constexpr double position_window = 64;

constexpr size_t most_drafts = 32;
constexpr double draft_decay = 0.93;  // weight against the next one's: half of it in ten rounds
constexpr double mean_weight = 1;     // of the draft of averages, beside the real ones

constexpr std::array<int32_t, 3> match_edges = {16, 24, 48};
// Before anything is known: the longer the match, the surer. Drafts that fail at once must be seen quickly, so a first
// token's window is short; later ones stand for hundreds in a row where a text repeats itself.
constexpr std::array<double, 4> first_prior  = {0.7, 0.82, 0.9, 0.95};
constexpr std::array<double, 4> later_prior  = {0.92, 0.95, 0.97, 0.985};
constexpr double                first_window = 16, later_window = 128;
constexpr double                lookup_weight = 3;

constexpr double text_keep = 0.5;  // of what was learned, for the next text

size_t bin_of(float confidence) {
    const auto edge = std::upper_bound(confidence_edges.begin(), confidence_edges.end(), confidence);
    return static_cast<size_t>(edge - confidence_edges.begin());
}

size_t bin_of(int32_t match_length) {
    const auto edge = std::upper_bound(match_edges.begin(), match_edges.end(), match_length);
    return static_cast<size_t>(edge - match_edges.begin());
}

float as_probability(float confidence) {
    return confidence > 0 ? std::min(confidence, 1.0f) : 0.0f;
}  // NaN: 0

}  // namespace

void Rate::count(bool stood, double window) {
    fade(1 - 1 / window);
    accepted += stood ? 1 : 0;
    tried += 1;
}

void Rate::fade(double keep) {
    accepted *= keep;
    tried *= keep;
}

HeadSuccess::HeadSuccess(int32_t max_width)
    : tried_(static_cast<size_t>(max_width)), positions_(static_cast<size_t>(max_width)) {
    update_positions();
}

double HeadSuccess::by_confidence(float confidence) const {
    const float known = as_probability(confidence);
    return bins_[bin_of(known)].value(static_cast<double>(known), confidence_weight);
}

// A position that was never tried is taken for as good as the one before it: so wider drafts are tried where they cost
// little more.
void HeadSuccess::update_positions() {
    double before = position_prior;
    for (size_t t = 0; t < positions_.size(); ++t) {
        before = positions_[t] = tried_[t].value(before, position_weight);
    }
}

void HeadSuccess::learn(const std::vector<float> & confidences, int32_t n_verified, int32_t n_accepted, bool ended) {
    const auto   n     = std::min({static_cast<size_t>(std::max(n_verified, 0)), confidences.size(), tried_.size()});
    const auto   stood = static_cast<size_t>(std::max(n_accepted, 0));
    const size_t seen  = std::min(n, stood + (ended ? 0 : 1));
    for (size_t t = 0; t < seen; ++t) {
        bins_[bin_of(as_probability(confidences[t]))].count(t < stood, confidence_window);
        tried_[t].count(t < stood, position_window);
    }
    update_positions();
    if (confidences.empty()) {
        return;
    }
    for (Drafted & draft : drafts_) {
        draft.weight *= draft_decay;
    }
    if (drafts_.size() == most_drafts) {
        drafts_.erase(drafts_.begin());
    }
    drafts_.push_back({confidences, 1});
}

void HeadSuccess::expected(const std::vector<float> & confidences, std::vector<double> & tokens) const {
    tokens.assign(1, 1.0);
    double survival = 1;
    for (size_t t = 0; t < positions_.size(); ++t) {
        survival *= t < confidences.size() ? by_confidence(confidences[t]) : positions_[t];
        tokens.push_back(tokens.back() + survival);
    }
}

void HeadSuccess::update_curves() {
    curves_.resize(drafts_.size() + 1);
    for (size_t i = 0; i < drafts_.size(); ++i) {
        curves_[i].weight = drafts_[i].weight;
        expected(drafts_[i].confidences, curves_[i].tokens);
    }
    curves_.back().weight = mean_weight;
    expected({}, curves_.back().tokens);
}

void HeadSuccess::fade() {
    for (Rate & rate : bins_) {
        rate.fade(text_keep);
    }
    for (Rate & rate : tried_) {
        rate.fade(text_keep);
    }
    for (Drafted & draft : drafts_) {
        draft.weight *= text_keep;
    }
    update_positions();
}

double LookupSuccess::first(int32_t match_length) const {
    const size_t bin = bin_of(match_length);
    return first_[bin].value(first_prior[bin], lookup_weight);
}

double LookupSuccess::later(int32_t match_length) const {
    const size_t bin = bin_of(match_length);
    return later_[bin].value(later_prior[bin], lookup_weight);
}

void LookupSuccess::learn(const Lookup & lookup, const std::vector<int32_t> & committed) {
    const size_t bin = bin_of(lookup.match_length);
    const size_t n   = std::min(lookup.tokens.size(), committed.size());
    for (size_t t = 0; t < n; ++t) {
        const bool stood = lookup.tokens[t] == committed[t];
        t == 0 ? first_[bin].count(stood, first_window) : later_[bin].count(stood, later_window);
        if (!stood) {
            return;
        }
    }
}

void LookupSuccess::fade() {
    for (size_t bin = 0; bin < n_bins; ++bin) {
        first_[bin].fade(text_keep);
        later_[bin].fade(text_keep);
    }
}

}  // namespace pd2
