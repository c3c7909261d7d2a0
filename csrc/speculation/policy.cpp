#include "policy.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace pd2 {

namespace {

// Widths beyond the head's: few, so that the target's graphs repeat and their costs are soon known; 2^n - 1 and the
// middle between two, since kernels work on 4, 8, 16, .. rows.
constexpr std::array<int32_t, 6> long_widths = {11, 15, 23, 31, 47, 63};
constexpr int32_t                least_fine  = 7;  // every width up to here is used, also without a head

// The head's account against plain steps, in tokens: what it gains and loses, by what its rounds really brought. Plain
// steps pay in a part of a token each, which is what drafting may cost where it never pays, however dear a probe is.
// Probes wait until the account bears what they are expected to lose; one that gains pays for others at once. Without
// credit the head does not draft, whatever is thought of it: estimates may be wrong, the account is not.
constexpr double cost_doubt  = 1.02;  // costs are known to some parts in a hundred
constexpr double earned      = 0.01;
constexpr double first_purse = 4;   // once in an engine's life: a fair try costs it where the head turns out not to pay
constexpr double full_purse  = 20;  // gains that may be lost again
constexpr double dearest     = 2;   // credit that any probe is made with

constexpr int32_t plain_samples = 4;  // plain steps that an engine without calibration begins with
constexpr int32_t plain_again =
    128;  // rounds after which, at the latest, one is measured again: all else is weighed against it

size_t index(Kind kind) {
    return kind == Kind::mod ? 1 : 0;
}

}  // namespace

Policy::Policy(const Limits & limits)
    : limits_(limits),
      costs_(std::max({limits.most, limits.head_width, 1})),
      calibrated_(costs_),
      own_(limits.head_width),
      fresh_(limits.head_width),
      learned_(&own_) {
    own_.purse = first_purse;
    for (int32_t width = 1; width <= limits.most; ++width) {
        const bool fine = width <= std::max(limits.head_width, least_fine);
        if ((fine || std::count(long_widths.begin(), long_widths.end(), width) > 0) && fit(width) == width) {
            widths_.push_back(width);
        }
    }
}

void Policy::set_verify(int32_t rows, double seconds) {
    costs_.verify_curve().set(rows, seconds);
    calibrated_.verify_curve().set(rows, seconds);
}

void Policy::set_draft(int32_t width, double seconds) {
    costs_.draft_curve().set(width, seconds);
    calibrated_.draft_curve().set(width, seconds);
}

void Policy::begin(const Mode & mode, bool reproducible) {
    mode_           = mode;
    reproducible_   = reproducible;
    choice_         = {};
    rounds_unplain_ = 0;
    if (reproducible) {
        fresh_       = Learned(limits_.head_width);
        fresh_.purse = first_purse;
        learned_     = &fresh_;
        return;
    }
    learned_ = &own_;
    if (!chooses()) {
        return;
    }
    own_.head.fade();
    own_.lookups[0].fade();
    own_.lookups[1].fade();
}

// The widest that may be verified within a width.
int32_t Policy::fit(int32_t width) const {
    width = std::clamp(width, 0, limits_.most);
    if (!limits_.allowed) {
        return width;
    }
    int32_t best = 0;
    for (const int32_t allowed : *limits_.allowed) {
        best = allowed <= width ? std::max(best, allowed) : best;
    }
    return best;
}

Choice Policy::choose(const Lookup * map_k4v, const Lookup * mod, int32_t room) {
    found_[0] = map_k4v ? *map_k4v : Lookup();
    found_[1] = mod ? *mod : Lookup();
    choice_   = {};
    if (mode_.speculate && room > 0) {
        choice_ = forced(mode_.lookups, room);
        if (choice_.kind == Kind::none && chooses()) {
            choice_ = best(room);
        }
    }
    return choice_;
}

Choice Policy::forced(Lookups lookups, int32_t room) const {
    if (lookups == Lookups::map_k4v || lookups == Lookups::mod) {
        const Kind    kind  = lookups == Lookups::mod ? Kind::mod : Kind::map_k4v;
        const int32_t width = fit(std::min(room, static_cast<int32_t>(found_[index(kind)].tokens.size())));
        if (width > 0) {
            return {kind, width, false};
        }
    }
    const int32_t width = mode_.head ? fit(std::min({mode_.head_width, limits_.head_width, room})) : 0;
    return width > 0 ? Choice{Kind::head, width, false} : Choice{};
}

void Policy::add_lookups(int32_t room) {
    for (const Kind kind : {Kind::map_k4v, Kind::mod}) {
        const Lookup &        found   = found_[index(kind)];
        const LookupSuccess & success = learned_->lookups[index(kind)];
        const int32_t         n       = std::min(room, static_cast<int32_t>(found.tokens.size()));
        double                tokens = 1, survival = success.first(found.match_length);
        int32_t               t = 0;
        for (const int32_t width : widths_) {
            if (width > n) {
                break;
            }
            for (; t < width; ++t, survival *= success.later(found.match_length)) {
                tokens += survival;
            }
            options_.push_back({{kind, width, false}, tokens, used_costs().verify(width + 1)});
        }
    }
}

// Over drafts like the latest ones, each cut where it is worth most: their means for every width.
Policy::Option Policy::best_of_head(double rate, int32_t room) const {
    struct Cut {
        double tokens, seconds;
    };
    const auto &     curves = learned_->head.curves();
    const Costs &    costs  = used_costs();
    std::vector<Cut> cuts(curves.size(), Cut{1, costs.verify(1)});
    Option           best{{Kind::head, 0, true}, 0, 0};
    double           most = -std::numeric_limits<double>::infinity();
    for (const int32_t width : widths_) {
        if (width > std::min(room, limits_.head_width)) {
            break;
        }
        const double verify = costs.verify(width + 1);
        Option       option{{Kind::head, width, false}, 0, costs.draft(width)};
        double       weight = 0;
        for (size_t i = 0; i < curves.size(); ++i) {
            const double tokens = curves[i].tokens[static_cast<size_t>(width)];
            if (tokens - rate * verify > cuts[i].tokens - rate * cuts[i].seconds) {
                cuts[i] = {tokens, verify};
            }
            weight += curves[i].weight;
        }
        for (size_t i = 0; i < curves.size(); ++i) {
            option.tokens += curves[i].weight / weight * cuts[i].tokens;
            option.seconds += curves[i].weight / weight * cuts[i].seconds;
        }
        if (option.value(rate) > most) {
            most = option.value(rate);
            best = option;
        }
    }
    return best;
}

Choice Policy::best(int32_t room) {
    const Costs & costs    = used_costs();
    const double  plain    = 1 / costs.verify(1);
    const int32_t of_head  = mode_.head ? std::min(room, limits_.head_width) : 0;
    const bool    has_head = !widths_.empty() && widths_[0] <= of_head;
    rate_                  = plain;
    if (!reproducible_ && (costs.verify_curve().n_samples(1) < plain_samples ||
                           rounds_unplain_ >= std::min(8 * costs.verify_curve().n_samples(1), plain_again))) {
        return {Kind::none, 0, true};
    }
    options_.clear();
    if (mode_.lookups == Lookups::any) {
        add_lookups(room);
    }
    Option top{{}, 1, costs.verify(1)};
    if (has_head) {
        learned_->head.update_curves();
    }
    Option head{};
    for (int32_t step = 0; step < 16; ++step) {
        Option next = top;
        for (const Option & option : options_) {
            next = option.value(rate_) > next.value(rate_) ? option : next;
        }
        if (has_head && learned_->purse > 0) {
            const Option option = best_of_head(rate_, room);
            head                = step == 0 ? option : head;
            next                = option.value(rate_) > next.value(rate_) ? option : next;
        }
        if (next.tokens <= rate_ * next.seconds * (1 + 1e-9)) {
            break;
        }
        top   = next;
        rate_ = next.tokens / next.seconds;
    }
    if (top.choice.kind == Kind::none && has_head && learned_->purse > 0 &&
        learned_->purse >= std::min(-head.value(plain), dearest)) {
        return {Kind::head, head.choice.width, true};
    }
    return top.choice;
}

int32_t Policy::best_cut(const std::vector<double> & tokens, int32_t from, int32_t to) const {
    int32_t best = from;
    for (const int32_t width : widths_) {
        if (width > to) {
            break;
        }
        const auto value = [&](int32_t v) {
            return tokens[static_cast<size_t>(v)] - rate_ * used_costs().verify(v + 1);
        };
        if (width > from && value(width) > value(best)) {
            best = width;
        }
    }
    return best;
}

int32_t Policy::cut(const std::vector<float> & confidences) const {
    if (choice_.kind != Kind::head) {
        return 0;
    }
    const auto n = std::min(static_cast<int32_t>(confidences.size()), choice_.width);
    if (mode_.head_width != Mode::any) {
        return fit(n);
    }
    std::vector<double> tokens;
    learned_->head.expected(confidences, tokens);
    const int32_t width = best_cut(tokens, 0, n);
    // A probe that verifies nothing could not tell that the head has become better than its word.
    return width == 0 && choice_.probe && fit(n) > 0 ? widths_.front() : width;
}

bool Policy::more(const std::vector<float> & drawn, float next) const {
    const auto n = static_cast<int32_t>(drawn.size());
    if (choice_.kind != Kind::head || n >= choice_.width) {
        return false;
    }
    if (mode_.head_width != Mode::any || fit(n) != n || (n == 0 && choice_.probe)) {
        return fit(choice_.width) > n;
    }
    std::vector<float> confidences = drawn;
    confidences.push_back(next);
    std::vector<double> tokens;
    learned_->head.expected(confidences, tokens);
    return best_cut(tokens, n, choice_.width) > n;
}

void Policy::learn(const Round & round) {
    if (!reproducible_) {
        costs_.verify_curve().sample(round.n_verified + 1, round.verify_seconds);
        if (round.kind == Kind::head) {
            costs_.draft_curve().sample(round.n_drafted, round.draft_seconds);
        }
    }
    if (!chooses()) {  // what a caller fixes says nothing about what would have been chosen
        return;
    }
    for (size_t i = 0; i < found_.size(); ++i) {
        learned_->lookups[i].learn(found_[i], round.committed);
        found_[i] = {};
    }
    rounds_unplain_ = round.n_verified == 0 ? 0 : rounds_unplain_ + 1;
    if (round.kind == Kind::head) {
        learned_->head.learn(round.confidences, round.n_verified, round.n_accepted, round.ended);
    }
    if (round.kind == Kind::head) {
        const Costs & costs   = used_costs();
        const double  seconds = costs.draft(round.n_drafted) + costs.verify(round.n_verified + 1);
        learned_->purse += 1 + round.n_accepted - cost_doubt * seconds / costs.verify(1);
    } else if (round.kind == Kind::none) {
        learned_->purse += earned;
    }
    learned_->purse = std::min(learned_->purse, full_purse);
}

}  // namespace pd2
