#include "speculator.h"

#include <algorithm>
#include <utility>

#include "watch.h"

namespace pd2 {
namespace {

bool same(const Policy::Mode & a, const Policy::Mode & b) {
    return a.speculate == b.speculate && a.head_width == b.head_width && a.lookups == b.lookups;
}

}  // namespace

Speculator::Speculator(Sequence & sequence) : sequence_(sequence) {
    allow(std::nullopt);
}

void Speculator::allow(std::optional<std::vector<int32_t>> widths) {
    Policy::Limits limits;
    limits.head_width = sequence_.most_drafted();
    limits.most       = std::min(limits.most, sequence_.most_verified());
    limits.allowed    = std::move(widths);
    policy_           = std::make_unique<Policy>(limits);
    text_             = 0;
}

void Speculator::begin(const Settings & settings) {
    if (text_ == sequence_.text_id() && same(settings.mode, settings_.mode) &&
        settings.reproducible == settings_.reproducible) {
        return;
    }
    Policy::Mode mode = settings.mode;
    mode.head         = !sequence_.draft_obstacle();
    policy_->begin(mode, settings.reproducible);
    map_k4v_->begin(sequence_.tokens());
    mod_->begin(sequence_.tokens());
    text_     = sequence_.text_id();
    settings_ = settings;
}

const Speculator::Outcome & Speculator::round(const Settings & settings, int32_t max_commit) {
    Watch watch;
    begin(settings);
    const int32_t limit = max_commit < 0 ? INT32_MAX : max_commit - 1;  // beside the bonus token
    const int32_t room  = std::max(0, std::min(sequence_.room(), limit));

    const Policy::Lookups lookups = settings.mode.speculate ? settings.mode.lookups : Policy::Lookups::off;
    const auto            look_up = [&](LookupDrafter & drafter, Policy::Lookups own) -> const Lookup * {
        const bool wanted = (lookups == Policy::Lookups::any || lookups == own) && room > 0;
        return wanted ? &drafter.draft(sequence_.tokens(), room) : nullptr;
    };
    Round                       round;
    const std::vector<Proposal> proposals = draft(settings, look_up(*map_k4v_, Policy::Lookups::map_k4v),
                                                  look_up(*mod_, Policy::Lookups::mod), room, round);
    round.draft_seconds                   = watch.lap();

    outcome_.verdict     = sequence_.verify(proposals, max_commit);
    round.verify_seconds = watch.lap();
    round.n_verified     = static_cast<int32_t>(proposals.size());
    round.n_accepted     = outcome_.verdict.n_accepted;
    round.ended          = !outcome_.verdict.has_bonus;
    round.committed      = outcome_.verdict.tokens;

    outcome_.kind           = round.kind;
    outcome_.n_verified     = round.n_verified;
    outcome_.draft_seconds  = round.draft_seconds;
    outcome_.verify_seconds = round.verify_seconds;
    if (!round.ended && (round.kind == Kind::map_k4v || round.kind == Kind::mod)) {
        (round.kind == Kind::mod ? mod_ : map_k4v_)->accepted(round.n_verified, round.n_accepted);
    }
    policy_->learn(round);
    return outcome_;
}

std::vector<Proposal> Speculator::draft(const Settings & settings, const Lookup * map_k4v, const Lookup * mod,
                                        int32_t room, Round & round) {
    const Choice choice = policy_->choose(map_k4v, mod, room);
    round.kind          = choice.kind;
    switch (choice.kind) {
        case Kind::none:
            return {};
        case Kind::map_k4v:
            return take(*map_k4v, choice.width);
        case Kind::mod:
            return take(*mod, choice.width);
        case Kind::head:
            break;
    }
    return draft_head(settings.walk, choice.width, round);
}

// As much of what was found as a grammar lets stand.
std::vector<Proposal> Speculator::take(const Lookup & found, int32_t width) const {
    const std::unique_ptr<Constraint> constraint = sequence_.constraint();
    std::vector<Proposal>             proposals;
    for (const int32_t token : found.tokens) {
        if (static_cast<int32_t>(proposals.size()) == width || (constraint && !constraint->allowed(&token, 1)[0])) {
            break;
        }
        if (constraint) {
            constraint->accept(token);
        }
        proposals.push_back({token});
    }
    return proposals;
}

std::vector<Proposal> Speculator::draft_head(const WalkParams & params, int32_t width, Round & round) {
    WalkParams walk = params;
    if (walk.temperature > 0) {
        walk.more = [this](const std::vector<float> & drawn, float next) { return policy_->more(drawn, next); };
    }
    const Sequence::Draft & made = sequence_.draft(width, walk);
    round.n_drafted              = made.lattice.n;
    round.confidences            = made.path.confidences;
    auto n                       = static_cast<int32_t>(made.path.tokens.size());
    if (walk.temperature == 0) {
        n = std::min(n, policy_->cut(made.path.confidences));
    }
    return made.proposals(n);
}

}  // namespace pd2
