#include "sequence.h"

#include <algorithm>
#include <cmath>

#include "error.h"

namespace pd2 {

Sequence::Sequence(Target & target, Drafter * drafter)
    : target_(target),
      drafter_(drafter),
      context_size_(target.info().context_size),
      n_vocab_(target.info().n_vocab),
      rollback_limit_(target.info().rollback_limit) {
    target_.clear();
}

int32_t Sequence::begin(const int32_t * tokens, int32_t n_tokens, bool drafting) {
    if (n_tokens < 1) {
        fail(PD2_ERROR_ARGUMENT, "the prompt has no tokens; give at least one (a BOS token, for example)");
    }
    for (int32_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab_) {
            fail(PD2_ERROR_ARGUMENT, "token %d of the prompt is %d, the target's ids are 0..%d", i, tokens[i],
                 n_vocab_ - 1);
        }
    }
    if (n_tokens >= context_size_) {
        fail(PD2_ERROR_CONTEXT_OVERFLOW,
             "the prompt has %d tokens, the context holds %d with at least one to generate; shorten it or load with a "
             "larger context_size",
             n_tokens, context_size_);
    }
    if (drafting && !drafter_) {
        fail(PD2_ERROR_ARGUMENT, "drafting needs a head; load one or begin without drafting");
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
    drafting_ = drafting;
    ready_    = false;
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
        target_.decode(tokens_.data() + position, n, position, last ? Target::Logits::last : Target::Logits::none,
                       drafting_);
        if (drafting_) {
            drafter_->inject(target_.features(), n, position);
        }
        if (last) {
            tokens_.push_back(choose(0));
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

Sequence::Draft & Sequence::draft(int32_t width) {
    if (const char * obstacle = draft_obstacle()) {
        fail(PD2_ERROR_ARGUMENT, "no draft is possible: %s", obstacle);
    }
    if (width < 1) {
        fail(PD2_ERROR_ARGUMENT, "a draft of %d tokens was asked for; 1 is the least", width);
    }
    width = std::min(
        {width, drafter_->params().block_size - 1, context_size_ - 1 - target_.end(), target_.batch_size() - 1});
    if (rollback_limit_ > 0) {
        width = std::min(width, rollback_limit_);
    }
    if (width < 1) {
        fail(PD2_ERROR_ARGUMENT, "no draft is possible: batch_size leaves no room for a drafted token");
    }
    drafter_->draft(tokens_.back(), target_.end(), width, draft_.lattice);
    draft_.path = walk_greedily(draft_.lattice);
    return draft_;
}

const Sequence::Verdict & Sequence::verify(const int32_t * draft, int32_t n_draft, int32_t max_commit) {
    if (!ready_) {
        fail(PD2_ERROR_ARGUMENT, "nothing to verify; prefill a prompt first");
    }
    if (n_draft < 0 || n_draft + 1 > target_.batch_size()) {
        fail(PD2_ERROR_ARGUMENT, "a draft of %d tokens; 0 to %d can be verified at once", n_draft,
             target_.batch_size() - 1);
    }
    if (rollback_limit_ >= 0 && n_draft > rollback_limit_) {
        fail(PD2_ERROR_ARGUMENT, "a draft of %d tokens, but this target can take back %d at most; draft fewer", n_draft,
             rollback_limit_);
    }
    if (max_commit == 0) {
        fail(PD2_ERROR_ARGUMENT, "max_commit is 0; a round commits at least one token");
    }
    const int32_t position = target_.end();
    if (position + n_draft + 1 > context_size_) {
        fail(PD2_ERROR_CONTEXT_OVERFLOW,
             "%d tokens are committed and %d drafted, the context holds %d; load with a larger context_size",
             position + 1, n_draft, context_size_);
    }

    std::vector<int32_t> rows = {tokens_.back()};
    rows.insert(rows.end(), draft, draft + n_draft);
    Verdict verdict;
    try {
        target_.decode(rows.data(), n_draft + 1, position, Target::Logits::all, drafting_);
        for (int32_t i = 0; i <= n_draft; ++i) {
            const int32_t token = choose(i);
            const bool    match = i < n_draft && token == draft[i];
            verdict.tokens.push_back(token);
            verdict.n_accepted += match;
            verdict.has_bonus = !match;
            verdict.finished  = target_.is_end(token);
            if (!match || verdict.finished || static_cast<int32_t>(verdict.tokens.size()) == max_commit) {
                break;
            }
        }
        if (drafting_) {
            drafter_->inject(target_.features(), static_cast<int32_t>(verdict.tokens.size()), position);
        }
    } catch (...) {
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
    verdict_ = std::move(verdict);
    return verdict_;
}

// Greedy: the first of the largest logits.
int32_t Sequence::choose(int32_t row) const {
    const float * logits = target_.logits(row);
    const float * best   = std::max_element(logits, logits + n_vocab_);
    if (!std::isfinite(*best)) {
        fail(PD2_ERROR_NATIVE,
             "the target's logits are not finite numbers; its file is damaged or its cache type too "
             "narrow: fetch or convert it again, or load with kv_type f32");
    }
    return static_cast<int32_t>(best - logits);
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
    }
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
