#include "ngram_index.h"

#include <algorithm>

namespace pd2 {

namespace {

constexpr size_t first_slots = 1024;

}  // namespace

NgramIndex::NgramIndex(int32_t n) : n_(std::max(n, 1)), slots_(first_slots, none) {}

// The slot that holds the key, or the empty one where it belongs. Keys are compared in full: no draft comes from a
// collision.
size_t NgramIndex::slot(const int32_t * key) const {
    uint64_t hash = 0;
    for (int32_t i = 0; i < n_; ++i) {
        hash = (hash ^ static_cast<uint32_t>(key[i])) * 0x9e3779b97f4a7c15;  // odd, and far from any pattern
        hash ^= hash >> 29;
    }
    const size_t mask = slots_.size() - 1;
    size_t       at   = hash & mask;
    while (slots_[at] != none && !std::equal(key, key + n_, text_.data() + slots_[at])) {
        at = (at + 1) & mask;
    }
    return at;
}

void NgramIndex::follow(const std::vector<int32_t> & text) {
    if (text.size() < text_.size()) {
        cut(text.size());
    }
    for (size_t i = text_.size(); i < text.size(); ++i) {
        text_.push_back(text[i]);
        if (i >= static_cast<size_t>(n_)) {
            add_place();
        }
    }
}

void NgramIndex::replace(const std::vector<int32_t> & text) {
    const auto   shorter = static_cast<std::ptrdiff_t>(std::min(text.size(), text_.size()));
    const size_t shared  = std::mismatch(text.begin(), text.begin() + shorter, text_.begin()).first - text.begin();
    if (shared == 0) {
        std::fill(slots_.begin(), slots_.end(), none);
        before_.clear();
        text_.clear();
        n_used_ = 0;
    }
    cut(shared);
    follow(text);
}

// The n-gram that has just got a token after it.
void NgramIndex::add_place() {
    const auto   place = static_cast<int32_t>(before_.size());
    const size_t at    = slot(text_.data() + place);
    before_.push_back(slots_[at]);
    n_used_ += slots_[at] == none;
    slots_[at] = place;
    if (2 * n_used_ > slots_.size()) {
        grow();
    }
}

// Takes places back in the reverse order of their coming. So a slot that becomes empty is the last that was filled: no
// key was ever put behind it, and open addressing needs no marks for deleted ones.
void NgramIndex::cut(size_t n_tokens) {
    while (text_.size() > n_tokens) {
        if (!before_.empty()) {
            const size_t at = slot(text_.data() + before_.size() - 1);
            slots_[at]      = before_.back();
            n_used_ -= slots_[at] == none;
            before_.pop_back();
        }
        text_.pop_back();
    }
}

void NgramIndex::grow() {
    const size_t n_places = before_.size();
    slots_.assign(2 * slots_.size(), none);
    before_.clear();
    n_used_ = 0;
    while (before_.size() < n_places) {
        add_place();
    }
}

int32_t NgramIndex::match_length(int32_t place, int32_t limit) const {
    int32_t length = n_;
    while (length < limit && place + n_ - length > 0 &&
           text_[static_cast<size_t>(place + n_ - length - 1)] ==
               text_[text_.size() - 1 - static_cast<size_t>(length)]) {
        ++length;
    }
    return length;
}

uint64_t NgramIndex::bytes() const {
    return (text_.capacity() + before_.capacity() + slots_.capacity()) * sizeof(int32_t);
}

}  // namespace pd2
