// The lookup drafters by themselves, ours and llama.cpp's, for tests/test_lookup.py:
//
//     lookup < SCRIPT       answers each draft and bytes of a script with a line
//     lookup bench N        nanoseconds per round of ours in texts of N tokens
//
// A script's lines:
//     new NAME KEY MAX      a drafter with an empty text: map-k4v, mod, llama-map-k4v, llama-mod
//     begin ID...           a new text
//     add ID...             the text grows
//     cut N                 the text is cut to N tokens
//     draft MAX             prints MATCH_LENGTH HITS ID...; llama.cpp's have 0 and 0, and -1 where its hash collided
//     accepted N_DRAFTED N_ACCEPTED
//     bytes                 prints them

#include "speculation/lookup.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#ifdef WITH_LLAMA_CPP
#include "log.h"
#include "ngram-map.h"
#include "ngram-mod.h"

// What ngram-map.cpp wants of llama.cpp's log, which is not built here.
common_log * common_log_main() {
    return nullptr;
}
void common_log_add(common_log *, ggml_log_level, const char *, ...) {}
int  common_log_get_verbosity_thold() {
     return -1;
}
#endif

namespace {

using Tokens = std::vector<int32_t>;

[[noreturn]] void refuse(const std::string & what) {
    std::fprintf(stderr, "lookup: %s\n", what.c_str());
    std::exit(1);
}

#ifdef WITH_LLAMA_CPP
class LlamaMap : public pd2::LookupDrafter {
  public:
    LlamaMap(int32_t key, int32_t max_tokens)
        : map_(static_cast<uint16_t>(key), static_cast<uint16_t>(max_tokens), false, 1) {}

    void begin(const Tokens & text) override { common_ngram_map_begin(map_, before_anchor(text)); }

    const pd2::Lookup & draft(const Tokens & text, int32_t max_tokens) override {
        lookup_.tokens.clear();
        common_ngram_map_draft(map_, before_anchor(text), text.back(), lookup_.tokens);
        lookup_.tokens.resize(std::min(lookup_.tokens.size(), static_cast<size_t>(max_tokens)));
        return lookup_;
    }

    void accepted(int32_t, int32_t n_accepted) override {
        common_ngram_map_accept(map_, static_cast<uint16_t>(n_accepted));
    }

    const char * name() const override { return "llama-map-k4v"; }

    uint64_t bytes() const override { return 0; }

  private:
    static Tokens before_anchor(const Tokens & text) { return {text.begin(), text.end() - !text.empty()}; }

    common_ngram_map map_;
    pd2::Lookup      lookup_;
};

// llama.cpp's table, filled without the delay of up to 32 tokens that its server has.
class LlamaMod : public pd2::LookupDrafter {
  public:
    LlamaMod(int32_t key, int32_t max_tokens)
        : key_(static_cast<size_t>(key)), max_tokens_(max_tokens), table_(static_cast<uint16_t>(key), 1 << 22) {}

    void begin(const Tokens &) override {
        table_.reset();
        places_.assign(table_.size(), -1);
        n_read_ = 0;
    }

    const pd2::Lookup & draft(const Tokens & text, int32_t max_tokens) override {
        if (places_.empty()) {
            begin(text);
        }
        for (; n_read_ + key_ < text.size(); ++n_read_) {
            table_.add(&text[n_read_]);
            places_[table_.idx(&text[n_read_])] = static_cast<int32_t>(n_read_);
        }
        lookup_ = {};
        if (text.size() < key_) {
            return lookup_;
        }
        Tokens window(text.end() - static_cast<std::ptrdiff_t>(key_), text.end());
        for (int32_t t = 0; t < std::min(max_tokens, max_tokens_); ++t) {
            const int32_t * key   = window.data() + t;
            const int32_t   token = table_.get(key);
            if (token == common_ngram_mod::EMPTY) {
                break;
            }
            if (!std::equal(key, key + key_, &text[static_cast<size_t>(places_[table_.idx(key)])])) {
                lookup_.match_length = lookup_.hits = -1;
            }
            window.push_back(token);
        }
        lookup_.tokens.assign(window.begin() + static_cast<std::ptrdiff_t>(key_), window.end());
        return lookup_;
    }

    void accepted(int32_t, int32_t) override {}

    const char * name() const override { return "llama-mod"; }

    uint64_t bytes() const override { return table_.size_bytes(); }

  private:
    const size_t     key_;
    const int32_t    max_tokens_;
    common_ngram_mod table_;
    Tokens           places_;  // that wrote the table's entries
    size_t           n_read_ = 0;
    pd2::Lookup      lookup_;
};
#endif

std::unique_ptr<pd2::LookupDrafter> make(const std::string & name, int32_t key, int32_t max_tokens) {
    if (name == "map-k4v") {
        return pd2::make_map_k4v(key, max_tokens);
    }
    if (name == "mod") {
        return pd2::make_mod(key, max_tokens);
    }
#ifdef WITH_LLAMA_CPP
    if (name == "llama-map-k4v") {
        return std::make_unique<LlamaMap>(key, max_tokens);
    }
    if (name == "llama-mod") {
        return std::make_unique<LlamaMod>(key, max_tokens);
    }
#endif
    refuse("no drafter " + name);
}

Tokens rest(std::istringstream & line) {
    Tokens tokens;
    for (int32_t token = 0; line >> token;) {
        tokens.push_back(token);
    }
    return tokens;
}

void run_script() {
    std::unique_ptr<pd2::LookupDrafter> drafter;
    Tokens                              text;
    for (std::string whole; std::getline(std::cin, whole);) {
        std::istringstream line(whole);
        std::string        command;
        line >> command;
        if (command == "new") {
            std::string name;
            int32_t     key = 0, max_tokens = 0;
            line >> name >> key >> max_tokens;
            drafter = make(name, key, max_tokens);
            text.clear();
            continue;
        }
        const Tokens numbers = rest(line);
        if (command == "begin") {
            text = numbers;
            drafter->begin(text);
        } else if (command == "add") {
            text.insert(text.end(), numbers.begin(), numbers.end());
        } else if (command == "cut") {
            text.resize(static_cast<size_t>(numbers.at(0)));
        } else if (command == "draft") {
            const pd2::Lookup & lookup = drafter->draft(text, numbers.at(0));
            std::printf("%d %d", lookup.match_length, lookup.hits);
            for (const int32_t token : lookup.tokens) {
                std::printf(" %d", token);
            }
            std::printf("\n");
            std::fflush(stdout);  // who asks may want the answer before he goes on
        } else if (command == "accepted") {
            drafter->accepted(numbers.at(0), numbers.at(1));
        } else if (command == "bytes") {
            std::printf("%llu\n", static_cast<unsigned long long>(drafter->bytes()));
        } else {
            refuse("no command " + command);
        }
    }
}

// Rounds that commit 4 tokens each at the end of a text: the median, the 99th percentile, and begin() by token.
void bench(size_t n_tokens) {
    std::mt19937 random(1);
    const auto   any      = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
    const auto   distinct = [&](Tokens & text) { text.push_back(any(150000)); };
    const auto   copies   = [&](Tokens & text) {  // runs of 300 tokens from anywhere before, 2 tokens in 100 changed
        const size_t from = text.size() < 1000 ? 0 : random() % (text.size() - 301);
        for (size_t i = 0; i < 300; ++i) {
                text.push_back(text.size() < 1000 || any(100) < 2 ? any(150000) : text[from + i]);
        }
    };
    const auto cycle = [&](Tokens & text) { text.push_back(static_cast<int32_t>(text.size() % 97)); };
    const auto same  = [&](Tokens & text) { text.push_back(7); };

    const std::pair<const char *, std::function<void(Tokens &)>> kinds[] = {
        {"distinct", distinct}, {"copies", copies}, {"cycle of 97", cycle}, {"one token", same}};
    constexpr size_t n_rounds = 2000, n_commit = 4;
    for (const char * name : {"map-k4v", "mod"}) {
        for (const auto & [kind, more] : kinds) {
            Tokens whole;
            while (whole.size() < n_tokens + n_rounds * n_commit) {
                more(whole);
            }
            Tokens                text(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n_tokens));
            const auto            drafter = make(name, 12, 64);
            const auto            now     = [] { return std::chrono::steady_clock::now(); };
            const auto            before  = now();
            std::vector<uint64_t> times;
            drafter->begin(text);
            const std::chrono::duration<double, std::nano> begun     = now() - before;
            size_t                                         n_drafted = 0;
            for (size_t round = 0; round < n_rounds; ++round) {
                for (size_t i = 0; i < n_commit; ++i) {
                    text.push_back(whole[text.size()]);
                }
                const auto start = now();
                n_drafted += drafter->draft(text, 64).tokens.size();
                times.push_back(static_cast<uint64_t>((now() - start).count()));
            }
            std::sort(times.begin(), times.end());
            std::printf(
                "%-8s %-12s round %6.2f us, 99%% %6.2f us, begin %5.1f ns a token, %5.1f bytes a token, %4.1f "
                "drafted\n",
                name, kind, static_cast<double>(times[n_rounds / 2]) / 1e3,
                static_cast<double>(times[n_rounds * 99 / 100]) / 1e3, begun.count() / static_cast<double>(n_tokens),
                static_cast<double>(drafter->bytes()) / static_cast<double>(text.size()),
                static_cast<double>(n_drafted) / n_rounds);
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc == 3 && std::string(argv[1]) == "bench") {
        bench(std::strtoul(argv[2], nullptr, 10));
    } else if (argc == 1) {
        run_script();
    } else {
        refuse("usage: lookup [bench N]");
    }
    return 0;
}
