#include "sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "error.h"

namespace pd2 {

void check_prompt(const int32_t * tokens, int32_t n_tokens, int32_t n_vocab) {
    if (n_tokens < 1) {
        fail(PD2_ERROR_ARGUMENT, "the prompt has no tokens; give at least one (a BOS token, for example)");
    }
    for (int32_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            fail(PD2_ERROR_ARGUMENT, "token %d of the prompt is %d, the target's ids are 0..%d", i, tokens[i],
                 n_vocab - 1);
        }
    }
}

Sequence::Sequence(Target & target, Drafter * drafter)
    : target_(target),
      drafter_(drafter),
      context_size_(target.info().context_size),
      n_vocab_(target.info().n_vocab),
      rollback_limit_(target.info().rollback_limit) {
    target_.clear();
}

std::unique_ptr<Sampler> Sequence::sampler(const Target & target, const Settings & settings) {
    const int32_t n_vocab = target.info().n_vocab;
    if (settings.n_logprobs < -1 || settings.n_logprobs > n_vocab) {
        fail(PD2_ERROR_ARGUMENT,
             "%d log-probabilities a token were asked for; 0 to %d can be given, -1 for none: ask for as many",
             settings.n_logprobs, n_vocab);
    }
    return target.sampler(settings.sampling);
}

int32_t Sequence::begin(const int32_t * tokens, int32_t n_tokens, bool drafting, const Settings & settings) {
    check_prompt(tokens, n_tokens, n_vocab_);
    if (n_tokens >= context_size_) {
        fail(PD2_ERROR_CONTEXT_OVERFLOW,
             "the prompt has %d tokens, the context holds %d with at least one to generate; shorten it or load with a "
             "larger context_size",
             n_tokens, context_size_);
    }
    if (drafting && !drafter_) {
        fail(PD2_ERROR_ARGUMENT, "drafting needs a head; load one or begin without drafting");
    }
    std::unique_ptr<Sampler> sampler = Sequence::sampler(target_, settings);
    for (int32_t i = 0; i < n_tokens; ++i) {
        sampler->read(tokens[i]);
    }

    // Logits exist only for a row that is decoded: at least the prompt's last token is.
    int32_t       shared = 0;
    const int32_t most   = std::min({target_.end(), n_tokens - 1, static_cast<int32_t>(tokens_.size())});
    while (shared < most && tokens_[shared] == tokens[shared]) {
        ++shared;
    }
    if (drafting) {
        // A prefix is reusable only as far as both caches have it. What the drafter's window has forgotten comes back
        // by decoding those positions again.
        shared = drafter_->missing_from(std::min(shared, drafter_->end()));
    }
    if (!rewind(shared)) {
        forget();
        shared = 0;
    }
    tokens_.assign(tokens, tokens + n_tokens);
    n_prompt_ = n_tokens;
    drafting_ = drafting;
    ready_    = false;
    ++text_id_;
    sampler_ = std::move(sampler);
    random_  = Random(settings.seed);

    if (drafting) {
        drafter_->begin_text(tokens, n_tokens);
    }
    with_logprobs_  = settings.n_logprobs >= 0;
    logprobs_       = {};
    logprobs_.n_top = std::max(settings.n_logprobs, 0);
    return shared;
}

int32_t Sequence::prefill(int32_t max_tokens) {
    const auto n_prompt = static_cast<int32_t>(tokens_.size());
    if (ready_ || n_prompt == 0) {
        fail(PD2_ERROR_ARGUMENT, "nothing to prefill; begin with a prompt first");
    }
    const int32_t position = target_.end();
    const int32_t limit    = max_tokens > 0 ? std::min(max_tokens, target_.batch_size()) : target_.batch_size();
    const int32_t n        = std::min(limit, n_prompt - position);
    const bool    last     = position + n == n_prompt;
    try {
        // What no draft after the prompt can see is not read.
        const bool read = drafting_ && position + n > drafter_->first_visible(n_prompt);
        target_.decode(tokens_.data() + position, n, position, last ? Target::Logits::last : Target::Logits::none,
                       read);
        if (read) {
            drafter_->inject(target_.features(), n, position);
        }
        if (last) {
            logprobs_.clear();
            const int32_t anchor = pd2::draw(sampler_->distribution(target_.logits(0)), random_);
            accept(0, anchor);
            tokens_.push_back(anchor);
            ready_ = true;
        }
    } catch (...) {
        restore(position);
        throw;
    }
    return n_prompt - target_.end();
}

const char * Sequence::draft_obstacle() const {
    if (!drafter_) {
        return "no head is loaded";
    }
    if (!ready_) {
        return "the prompt has not been decoded yet";
    }
    if (!drafting_) {
        return "this text was begun without drafting";
    }
    if (rollback_limit_ == 0) {
        return "the target's state cannot take back tokens (llama.cpp keeps no snapshots for this architecture)";
    }
    if (drafter_->missing_from(target_.end()) != target_.end()) {
        return "the drafter has not read all the text it needs to see";
    }
    if (target_.end() + 2 > context_size_) {
        return "the context is full";
    }
    return nullptr;
}

Sequence::Draft & Sequence::draft(int32_t width, const WalkParams & params) {
    if (const char * obstacle = draft_obstacle()) {
        fail(PD2_ERROR_ARGUMENT, "no draft is possible: %s", obstacle);
    }
    if (width < 1) {
        fail(PD2_ERROR_ARGUMENT, "a draft of %d tokens was asked for; 1 is the least", width);
    }
    if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
        fail(PD2_ERROR_ARGUMENT, "the draft's temperature is %g: give 0 for the likeliest path, or a positive number",
             static_cast<double>(params.temperature));
    }
    if (!(params.min_probability >= 0 && params.min_probability <= 1)) {
        fail(PD2_ERROR_ARGUMENT, "the draft's min_probability is %g: give a number from 0, for no limit, to 1",
             static_cast<double>(params.min_probability));
    }
    if (params.kind != PD2_WALK_ARGMAX && params.kind != PD2_WALK_EXPECTED_LENGTH) {
        fail(PD2_ERROR_ARGUMENT, "walk is %d: give one of pd2_walk", static_cast<int>(params.kind));
    }
    width = std::min({width, most_drafted(), room()});
    if (width < 1) {
        fail(PD2_ERROR_ARGUMENT, "no draft is possible: batch_size leaves no room for a drafted token");
    }
    drafter_->draft(tokens_.back(), target_.end(), width, draft_.lattice);
    draft_.path = walk(draft_.lattice, params, random_, sampler_->constraint().get());
    return draft_;
}

std::vector<Proposal> Sequence::Draft::proposals(int32_t n) const {
    return proposals_of(n, path.tokens.data(), lattice.k, lattice.candidates.data(),
                        path.proposal.empty() ? nullptr : path.proposal.data());
}

int32_t Sequence::most_drafted() const {
    return drafter_ ? std::min(drafter_->params().block_size - 1, most_verified()) : 0;
}

int32_t Sequence::most_verified() const {
    const int32_t fits = target_.most_rows() - 1;
    return rollback_limit_ >= 0 ? std::min(fits, rollback_limit_) : fits;
}

int32_t Sequence::room() const {
    return std::max(0, std::min(most_verified(), context_size_ - 1 - target_.end()));
}

void Sequence::check_draft(const std::vector<Proposal> & draft) const {
    const auto n_draft = static_cast<int32_t>(draft.size());
    if (n_draft + 1 > target_.batch_size()) {
        fail(PD2_ERROR_ARGUMENT, "a draft of %d tokens; 0 to %d can be verified at once: give a shorter one", n_draft,
             target_.batch_size() - 1);
    }
    if (rollback_limit_ >= 0 && n_draft > rollback_limit_) {
        fail(PD2_ERROR_ARGUMENT, "a draft of %d tokens, but this target can take back %d at most; draft fewer", n_draft,
             rollback_limit_);
    }
    if (target_.end() + n_draft + 1 > context_size_) {
        fail(PD2_ERROR_CONTEXT_OVERFLOW,
             "%d tokens are committed and %d drafted, the context holds %d; load with a larger context_size",
             target_.end() + 1, n_draft, context_size_);
    }
    for (int32_t t = 0; t < n_draft; ++t) {
        const Proposal & proposal = draft[static_cast<size_t>(t)];
        if (!proposal.q) {
            continue;
        }
        double total = 0, own = 0;
        for (int32_t b = 0; b < proposal.k; ++b) {
            const auto q = static_cast<double>(proposal.q[b]);
            if (!(q >= 0 && std::isfinite(q))) {
                fail(PD2_ERROR_ARGUMENT,
                     "the proposal of drafted token %d has a probability of %g; give what draft() gave", t, q);
            }
            total += q;
            own += proposal.candidates[b] == proposal.token ? q : 0;
        }
        if (own <= 0 || total > 1.001) {
            fail(PD2_ERROR_ARGUMENT,
                 "the proposal of drafted token %d gives token %d the probability %g and all candidates together %g; "
                 "it must "
                 "be what the token was drawn from",
                 t, proposal.token, own, total);
        }
    }
}

const Sequence::Verdict & Sequence::verify(const std::vector<Proposal> & draft, int32_t max_commit) {
    if (!ready_) {
        fail(PD2_ERROR_ARGUMENT, "nothing to verify; prefill a prompt first");
    }
    if (max_commit == 0) {
        fail(PD2_ERROR_ARGUMENT, "max_commit is 0; a round commits at least one token");
    }
    check_draft(draft);

    const auto           n_draft  = static_cast<int32_t>(draft.size());
    const int32_t        position = target_.end();
    std::vector<int32_t> rows     = {tokens_.back()};
    for (const Proposal & proposal : draft) {
        rows.push_back(proposal.token);
    }
    const Random random_before = random_;
    Verdict      verdict;
    logprobs_.clear();
    try {
        target_.decode(rows.data(), n_draft + 1, position, Target::Logits::all, drafting_);
        judge(draft, max_commit, verdict);
        if (drafting_) {
            drafter_->inject(target_.features(), static_cast<int32_t>(verdict.tokens.size()), position);
        }
    } catch (...) {
        random_ = random_before;
        restore(position);
        throw;
    }

    const auto n_commit = static_cast<int32_t>(verdict.tokens.size());
    if (!rewind(position + n_commit)) {
        forget();
        fail(PD2_ERROR_NATIVE, "the target could not take back %d rejected tokens; the text has to be begun again",
             n_draft + 1 - n_commit);
    }
    tokens_.insert(tokens_.end(), verdict.tokens.begin(), verdict.tokens.end());
    if (drafting_) {
        drafter_->read_text(verdict.tokens.data(), n_commit);
    }
    verdict_ = std::move(verdict);
    return verdict_;
}

// Reads the last decode's rows and chooses the tokens to commit. A draft ends with its first end-of-generation token.
void Sequence::judge(const std::vector<Proposal> & draft, int32_t max_commit, Verdict & verdict) {
    std::vector<Proposal> judged;
    for (const Proposal & proposal : draft) {
        judged.push_back(proposal);
        if (target_.is_end(proposal.token)) {
            break;
        }
    }
    // Rows after the first are asked about as if the draft stood; the sampler itself learns only what does.
    const std::unique_ptr<Sampler> fork    = judged.empty() ? nullptr : sampler_->fork();
    Sampler &                      sampler = fork ? *fork : *sampler_;
    Judge                          judge(judged, random_);
    for (int32_t row = 0; judge.see(row, sampler.distribution(target_.logits(row))); ++row) {
        if (fork) {
            fork->accept(judged[static_cast<size_t>(row)].token);
        }
    }

    verdict.n_accepted = judge.n_accepted();
    for (int32_t i = 0; i < verdict.n_accepted; ++i) {
        verdict.tokens.push_back(judged[static_cast<size_t>(i)].token);
    }
    verdict.finished  = !verdict.tokens.empty() && target_.is_end(verdict.tokens.back());
    verdict.has_bonus = !verdict.finished && verdict.n_accepted != max_commit;
    if (verdict.has_bonus) {
        verdict.tokens.push_back(judge.draw_next());
        verdict.finished = target_.is_end(verdict.tokens.back());
    }
    if (max_commit > 0 && static_cast<int32_t>(verdict.tokens.size()) > max_commit) {
        verdict.tokens.resize(static_cast<size_t>(max_commit));
        verdict.n_accepted = max_commit;
        verdict.has_bonus  = false;
        verdict.finished   = target_.is_end(verdict.tokens.back());
    }
    for (size_t i = 0; i < verdict.tokens.size(); ++i) {
        accept(static_cast<int32_t>(i), verdict.tokens[i]);
    }
}

// Tells the sampler about a token that is committed after a row of the last decode.
void Sequence::accept(int32_t row, int32_t token) {
    sampler_->accept(token);
    if (with_logprobs_) {
        logprobs_.add(target_.logits(row), n_vocab_, token);
    }
}

// Both caches forget positions >= position. False when the target's cannot; nothing is changed then.
bool Sequence::rewind(int32_t position) {
    if (position < target_.end() && !target_.truncate(position)) {
        return false;
    }
    if (drafter_) {
        drafter_->truncate(position);
    }
    return true;
}

// Back to before a step that failed; to nothing at all where a cache lost what it had.
void Sequence::restore(int32_t position) {
    if (target_.end() < position || !rewind(position)) {
        forget();
        return;
    }
    sampler_->reset();
    for (size_t i = 0; i < tokens_.size(); ++i) {
        i < static_cast<size_t>(n_prompt_) ? sampler_->read(tokens_[i]) : sampler_->accept(tokens_[i]);
    }
}

const std::vector<float> & Sequence::read_features(const int32_t * tokens, int32_t n_tokens) {
    if (target_.n_taps() == 0) {
        fail(PD2_ERROR_ARGUMENT, "this engine reads no features: load it with a head, or with taps_read");
    }
    check_prompt(tokens, n_tokens, n_vocab_);
    if (n_tokens > context_size_) {
        fail(PD2_ERROR_CONTEXT_OVERFLOW,
             "the text has %d tokens, the context holds %d; shorten it or load with a larger context_size", n_tokens,
             context_size_);
    }
    const auto width = static_cast<size_t>(target_.n_taps()) * static_cast<size_t>(target_.info().n_embd);
    features_.clear();
    features_.reserve(static_cast<size_t>(n_tokens) * width);
    forget();
    try {
        while (target_.end() < n_tokens) {
            const int32_t position = target_.end();
            const int32_t n        = std::min(n_tokens - position, target_.batch_size());
            target_.decode(tokens + position, n, position, Target::Logits::none, true);
            features_.insert(features_.end(), target_.features(), target_.features() + static_cast<size_t>(n) * width);
        }
    } catch (...) {
        forget();
        throw;
    }
    forget();
    return features_;
}

void Sequence::forget() {
    target_.clear();
    if (drafter_) {
        drafter_->clear();
    }
    tokens_.clear();
    ready_ = false;
}

}  // namespace pd2
