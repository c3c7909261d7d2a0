// The rules are those of llama.cpp's ngram-map (with values, "k4v") and ngram-mod, without what their bookkeeping adds:
// places are found from the first repeated token on, wherever they lie (there: after 2 n + m tokens, n + m + 1 behind
// the end, never position 0); no scan of the text or of all keys; no abort; a text may change. tests/test_lookup.py
// compares.
#include "lookup.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ngram_index.h"

namespace pd2 {

namespace {

constexpr int32_t longest_match = 64;
constexpr int32_t most_places   = 32;  // that are looked at for one draft, the latest ones; bounds its time
constexpr size_t  most_limits   = 4096;

uint64_t mix(uint64_t hash, int32_t token) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15;
    return hash ^ (hash >> 32);
}

class Drafter : public LookupDrafter {
  public:
    Drafter(int32_t key, int32_t max_tokens) : index_(key), max_tokens_(max_tokens) {}

    void begin(const std::vector<int32_t> & text) override {
        index_.replace(text);
        lookup_ = {};
    }

    const Lookup & draft(const std::vector<int32_t> & text, int32_t max_tokens) override {
        index_.follow(text);
        lookup_.tokens.clear();
        lookup_.match_length = lookup_.hits = 0;
        if (index_.size() > index_.n() && max_tokens > 0) {
            look_up(index_.text().data() + index_.size() - index_.n(), std::min(max_tokens, max_tokens_));
        }
        return lookup_;
    }

    uint64_t bytes() const override { return index_.bytes() + lookup_.tokens.capacity() * sizeof(int32_t); }

  protected:
    virtual void look_up(const int32_t * key, int32_t max_tokens) = 0;

    NgramIndex    index_;
    const int32_t max_tokens_;
    Lookup        lookup_;
};

class MapK4v : public Drafter {
  public:
    MapK4v(int32_t key, int32_t max_tokens, int32_t min_hits) : Drafter(key, max_tokens), min_hits_(min_hits) {}

    void begin(const std::vector<int32_t> & text) override {
        Drafter::begin(text);
        limits_.clear();
    }

    // As in llama.cpp, a value is next drafted as far as it was accepted last. There it never recovers, and none
    // accepted is the end of it; here one token is left to try, and a draft that stood to its end doubles the limit.
    void accepted(int32_t n_drafted, int32_t n_accepted) override {
        if (lookup_.tokens.empty() || n_drafted < 1) {
            return;
        }
        const int32_t before = limit();
        if (limits_.size() >= most_limits) {
            limits_.clear();
        }
        limits_[value_] = n_accepted < n_drafted ? std::max(n_accepted, 1) : std::max(before, 2 * n_accepted);
    }

    const char * name() const override { return "map-k4v"; }

    uint64_t bytes() const override {
        constexpr uint64_t node = sizeof(void *) + sizeof(std::pair<const uint64_t, int32_t>);
        return Drafter::bytes() + places_.capacity() * sizeof(int32_t) + limits_.size() * node +
               limits_.bucket_count() * sizeof(void *);
    }

  private:
    void look_up(const int32_t * key, int32_t max_tokens) override {
        places_.clear();
        for (int32_t place = index_.last(key);
             place != NgramIndex::none && static_cast<int32_t>(places_.size()) < most_places;
             place = index_.before(place)) {
            places_.push_back(place);
        }
        if (places_.empty() || static_cast<int32_t>(places_.size()) < min_hits_) {
            return;
        }
        follow_places();
        value_ = 0;
        for (int32_t i = 0; i < index_.n(); ++i) {
            value_ = mix(value_, key[i]);
        }
        for (const int32_t token : lookup_.tokens) {
            value_ = mix(value_, token);
        }
        const auto n = static_cast<size_t>(std::min(max_tokens, limit()));
        lookup_.tokens.resize(std::min(lookup_.tokens.size(), n));
        if (lookup_.tokens.empty()) {
            return;
        }
        lookup_.hits = static_cast<int32_t>(places_.size());
        for (size_t i = 0; i < places_.size() && lookup_.match_length < longest_match; ++i) {
            lookup_.match_length = std::max(lookup_.match_length, index_.match_length(places_[i], longest_match));
        }
    }

    int32_t limit() const {
        const auto entry = limits_.find(value_);
        return entry == limits_.end() ? max_tokens_ : entry->second;
    }

    // Reads on from all places at once and drops those that the majority leaves behind; a place that reaches the text's
    // end abstains while another has not. llama.cpp counts whole values of m tokens, the first four of a key, the
    // latest again at each draft, and reads from the latest, whatever won. Where its value has the majority that it
    // asks for, a vote on each token gives the same draft; where none has, what they have in common before they part.
    void follow_places() {
        std::vector<int32_t> & tokens = lookup_.tokens;
        size_t first = 0;  // places are sorted, latest first: those before it have come to the text's end
        while (static_cast<int32_t>(tokens.size()) < max_tokens_) {
            const auto ahead = index_.n() + static_cast<int32_t>(tokens.size());
            while (first + 1 < places_.size() && places_[first] + ahead >= index_.size()) {
                ++first;
            }
            const auto begin = places_.begin() + static_cast<std::ptrdiff_t>(first);
            int32_t    token = 0, lead = 0;  // Boyer and Moore: only this token can have more than half of the votes
            for (auto place = begin; place != places_.end(); ++place) {
                const int32_t vote = read(*place + ahead);
                token              = lead == 0 ? vote : token;
                lead += vote == token ? 1 : -1;
            }
            const auto others = [&](int32_t place) { return read(place + ahead) != token; };
            const auto n      = places_.end() - begin;
            if (const auto n_others = std::count_if(begin, places_.end(), others); n_others > 0) {
                if (n - n_others < 2 * n_others) {
                    return;
                }
                places_.erase(std::remove_if(begin, places_.end(), others), places_.end());
            }
            tokens.push_back(token);
        }
    }

    // Behind the text's end lies the draft: what repeats itself is continued.
    int32_t read(int32_t position) const {
        return position < index_.size() ? index_.text()[static_cast<size_t>(position)]
                                        : lookup_.tokens[static_cast<size_t>(position - index_.size())];
    }

    const int32_t        min_hits_;
    std::vector<int32_t> places_;     // of the key, latest first
    uint64_t             value_ = 0;  // hash of the last draft's key and of its value: the draft before it was limited

    std::unordered_map<uint64_t, int32_t> limits_;  // tokens that may be drafted, by value
};

class Mod : public Drafter {
  public:
    using Drafter::Drafter;

    // llama.cpp empties its table after five drafts in a row of which less than a quarter stood, and fills it again
    // from the text: for one text nothing changes. Nor is there anything to do for its occupancy, since this table
    // grows, or for its least length: a draft that began never ends early, because every key in it stood in the text
    // before.
    void accepted(int32_t, int32_t) override {}

    const char * name() const override { return "mod"; }

    uint64_t bytes() const override { return Drafter::bytes() + window_.capacity() * sizeof(int32_t); }

  private:
    void look_up(const int32_t * key, int32_t max_tokens) override {
        const auto n = static_cast<size_t>(index_.n());
        window_.assign(key, key + n);
        for (int32_t t = 0; t < max_tokens; ++t) {
            const int32_t place = index_.last(window_.data() + t);
            if (place == NgramIndex::none) {
                break;
            }
            if (t == 0) {
                lookup_.hits         = 1;
                lookup_.match_length = index_.match_length(place, longest_match);
            }
            window_.push_back(index_.text()[static_cast<size_t>(place) + n]);
        }
        lookup_.tokens.assign(window_.begin() + static_cast<std::ptrdiff_t>(n), window_.end());
    }

    std::vector<int32_t> window_;  // the key, then the draft
};

}  // namespace

std::unique_ptr<LookupDrafter> make_map_k4v(int32_t key, int32_t max_tokens, int32_t min_hits) {
    return std::make_unique<MapK4v>(key, max_tokens, min_hits);
}

std::unique_ptr<LookupDrafter> make_mod(int32_t key, int32_t max_tokens) {
    return std::make_unique<Mod>(key, max_tokens);
}

}  // namespace pd2
