#include "batch.h"

#include <algorithm>
#include <utility>

#include "acceptance.h"
#include "error.h"
#include "logprobs.h"
#include "spread.h"

namespace pd2 {

namespace {

size_t checked(int32_t n_top, int32_t n_vocab) {
    if (n_top < 0 || n_top > n_vocab) {
        fail(PD2_ERROR_ARGUMENT, "the %d likeliest tokens were asked for; 0 to %d can be given: ask for as many", n_top,
             n_vocab);
    }
    return static_cast<size_t>(n_top);
}

}  // namespace

Batch::Batch(const Target & target, int32_t n_texts, int32_t text_size, int32_t n_top)
    : target_(target),
      n_vocab_(target.info().n_vocab),
      text_size_(text_size),
      n_top_(checked(n_top, n_vocab_)),
      streams_(target.streams(n_texts, text_size)),
      texts_(static_cast<size_t>(n_texts)) {}

Batch::Text & Batch::at(int32_t slot) {
    if (slot < 0 || static_cast<size_t>(slot) >= texts_.size()) {
        fail(PD2_ERROR_ARGUMENT, "there is no slot %d; this batch has 0 to %zu: give one of these", slot,
             texts_.size() - 1);
    }
    return texts_[static_cast<size_t>(slot)];
}

void Batch::begin(int32_t slot, const int32_t * tokens, int32_t n_tokens, const Sequence::Settings & settings) {
    Text & text = at(slot);
    check_prompt(tokens, n_tokens, n_vocab_);
    if (n_tokens >= text_size_) {
        fail(PD2_ERROR_CONTEXT_OVERFLOW,
             "the prompt has %d tokens, a text of this batch %d at most with one to generate: shorten it or make the "
             "batch with a larger text_size",
             n_tokens, text_size_);
    }
    Text begun;
    begun.tokens.reserve(static_cast<size_t>(text_size_));
    begun.tokens.assign(tokens, tokens + n_tokens);
    begun.live    = true;
    begun.sampler = Sequence::sampler(target_, settings);
    begun.random  = Random(settings.seed);
    for (const int32_t token : begun.tokens) {
        begun.sampler->read(token);
    }
    streams_->clear(slot);
    text = std::move(begun);
}

void Batch::end(int32_t slot) {
    at(slot) = Text();
    streams_->clear(slot);
}

const Batch::Step & Batch::step() {
    if (std::none_of(texts_.begin(), texts_.end(), [](const Text & text) { return text.live; })) {
        fail(PD2_ERROR_ARGUMENT, "no text is live: begin one first");
    }
    try {
        read_prompts();
        choose();
    } catch (...) {
        // A stream cannot go back by one token where the target keeps states: texts are read again in the next step.
        for (size_t slot = 0; slot < texts_.size(); ++slot) {
            streams_->clear(static_cast<int32_t>(slot));
            texts_[slot].n_read = 0;
        }
        throw;
    }
    return step_;
}

// All but the last token of each: that one is decoded with the other texts' rows.
void Batch::read_prompts() {
    std::vector<Streams::Piece> pieces;
    int32_t                     room = streams_->batch_size();
    for (size_t slot = 0; slot < texts_.size() && room > 0; ++slot) {
        const Text &  text = texts_[slot];
        const int32_t n    = std::min(static_cast<int32_t>(text.tokens.size()) - 1 - text.n_read, room);
        if (text.live && n > 0) {
            pieces.push_back({static_cast<int32_t>(slot), text.tokens.data() + text.n_read, n, text.n_read});
            room -= n;
        }
    }
    if (pieces.empty()) {
        return;
    }
    streams_->decode(pieces, false);
    for (const Streams::Piece & piece : pieces) {
        texts_[static_cast<size_t>(piece.stream)].n_read += piece.n;
    }
}

void Batch::choose() {
    std::vector<Streams::Piece> rows;
    Step                        step;
    for (size_t slot = 0; slot < texts_.size(); ++slot) {
        const Text & text = texts_[slot];
        if (text.live && text.n_read + 1 == static_cast<int32_t>(text.tokens.size())) {
            rows.push_back({static_cast<int32_t>(slot), &text.tokens.back(), 1, text.n_read});
            step.chosen.push_back({static_cast<int32_t>(slot)});
        }
    }
    step.top_tokens.resize(rows.size() * n_top_);
    step.top.resize(rows.size() * n_top_);
    step_ = std::move(step);
    if (rows.empty()) {
        return;
    }
    streams_->decode(rows, true);

    std::vector<Random> randoms;
    for (const Chosen & chosen : step_.chosen) {
        randoms.push_back(texts_[static_cast<size_t>(chosen.slot)].random);
    }
    spread(target_.n_threads(), rows.size(), [&](size_t row) { judge(row, randoms[row]); });

    for (size_t row = 0; row < rows.size(); ++row) {
        const Chosen & chosen = step_.chosen[row];
        Text &         text   = texts_[static_cast<size_t>(chosen.slot)];
        text.sampler->accept(chosen.token);
        text.tokens.push_back(chosen.token);
        text.random = randoms[row];
        text.live   = !chosen.finished;
        ++text.n_read;
    }
}

// Chooses by a row of the last decode.
void Batch::judge(size_t row, Random & random) {
    const float * logits = streams_->logits(row);
    Chosen &      chosen = step_.chosen[row];
    Text &        text   = texts_[static_cast<size_t>(chosen.slot)];
    try {
        chosen.token = draw(text.sampler->distribution(logits), random);
    } catch (const Error & error) {
        fail(error.status, "the text in slot %d cannot go on: %s", chosen.slot, error.what());
    }
    chosen.is_end   = target_.is_end(chosen.token);
    chosen.finished = chosen.is_end || static_cast<int32_t>(text.tokens.size()) + 1 >= text_size_;
    if (n_top_ > 0) {
        Logprobs logprobs;
        logprobs.n_top = static_cast<int32_t>(n_top_);
        logprobs.add(logits, n_vocab_, chosen.token);
        std::copy(logprobs.top_tokens.begin(), logprobs.top_tokens.end(),
                  step_.top_tokens.begin() + static_cast<ptrdiff_t>(row * n_top_));
        std::copy(logprobs.top.begin(), logprobs.top.end(), step_.top.begin() + static_cast<ptrdiff_t>(row * n_top_));
    }
}

}  // namespace pd2
