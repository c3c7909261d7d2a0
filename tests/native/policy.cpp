// The policy by itself, for tests/test_policy.py:
//
//     policy < SCRIPT                                  answers choose, cut, more, points and cost with a line each
//     policy simulate MACHINE WORLD SEED N [FLAG...]   tokens a second in a made-up world, as a ratio to plain decoding
//     policy list                                      machines and worlds
//
// Flags: uncalibrated, drawn (the path is drawn token by token), reproducible, verbose, alone (no static arms); texts=N (that the tokens are
// divided into); from=N (tokens of each text that are not counted).
//
// A script's lines:
//     new HEAD_WIDTH MOST [ALLOWED...]
//     set verify|draft SIZE SECONDS
//     begin HEAD_WIDTH any|off|map-k4v|mod REPRODUCIBLE SPECULATE
//     found map-k4v|mod MATCH_LENGTH ID...    what the next choose is given
//     choose ROOM                             prints KIND WIDTH PROBE
//     cut CONFIDENCE...                       prints the width
//     more DRAWN... NEXT                      prints 0 or 1
//     learn KIND DRAFTED VERIFIED ACCEPTED ENDED DRAFT_SECONDS VERIFY_SECONDS N ID x N CONFIDENCE...
//     cost verify|draft SIZE                  prints seconds
//     points verify|draft                     prints SIZE SECONDS ...

#include "speculation/policy.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using pd2::Kind;
using pd2::Policy;
using Mode   = Policy::Mode;
using Tokens = std::vector<int32_t>;

[[noreturn]] void refuse(const std::string & what) {
    std::fprintf(stderr, "policy: %s\n", what.c_str());
    std::exit(1);
}

// ---- machines: seconds, a plain step at the text's beginning being 1 ------------------------------------------------

struct Machine {
    const char * name;
    double       row;        // a row more
    double       cliff;      // from 9 rows on, added
    double       draft;      // a draft,
    double       draft_row;  // and a token more of one
    double       context;    // a row at 4,000 tokens, added
    double       first;      // a text's first 4,000 tokens of it, added once a step

    double verify(int32_t rows, size_t position) const {
        const double depth = static_cast<double>(position) / 4000;
        return 1 + row * (rows - 1) + (rows > 8 ? cliff : 0) + depth * (context * rows + first);
    }
    double draft_of(int32_t width) const { return draft + draft_row * (width - 1); }
};

const Machine machines[] = {
    {"gpu", 0.007, 0, 0.25, 0.005, 0, 0.3},      // 8 rows = 1.05 rows
    {"cliff", 0.02, 1.2, 0.25, 0.01, 0, 0},      // kernels for up to 8 rows
    {"small-cpu", 0.24, 0, 0.3, 0.03, 0.05, 0},  // the demo pair: 8 rows = 2.7 rows
    {"dear", 0.34, 0, 0.46, 0.01, 0, 0},         // 13 ms a step, 44 ms for 8 rows, 6 ms a draft
    {"linear-cpu", 0.4, 0, 0.3, 0.03, 0, 0},     //
    {"deep", 0.1, 0, 0.3, 0.02, 0.6, 0},         // attention takes over as the context grows
    {"big-head", 0.24, 0, 1.5, 0.1, 0, 0},       // a head as dear as the target
};

// ---- worlds: what a text is made of, and how well it can be guessed -------------------------------------------------

struct Stretch {
    double  chance;  // of the next stretch being of this kind
    int32_t shortest, longest;
    bool    copied;   // from anywhere before
    double  guessed;  // mean chance of the head's token
    double  spread;   // Beta's a + b: small is all or nothing
};

enum class Word { true_, useless, boastful };  // what confidences are worth

struct World {
    const char *         name;
    Word                 word;
    std::vector<Stretch> stretches;
};

const World worlds[] = {
    {"code", Word::true_, {{1, 200, 400, false, 0.85, 3}}},
    {"prose", Word::true_, {{1, 200, 400, false, 0.5, 3}}},
    {"useless", Word::useless, {{1, 200, 400, false, 0.75, 3}}},
    {"boastful", Word::boastful, {{1, 200, 400, false, 0.6, 3}}},
    {"always", Word::true_, {{1, 200, 400, false, 0.999, 50}}},
    {"mixed", Word::true_, {{1, 200, 400, false, 0.9, 3}, {1, 200, 400, false, 0.25, 3}}},
    {"mixed-useless", Word::useless, {{1, 200, 400, false, 0.9, 3}, {1, 200, 400, false, 0.25, 3}}},
    {"editing", Word::true_, {{1, 20, 60, false, 0.7, 3}, {1, 50, 300, true, 0.8, 3}}},
    {"editing-prose", Word::true_, {{1, 100, 300, false, 0.3, 3}, {1, 50, 300, true, 0.4, 3}}},
    {"loops", Word::true_, {{1, 20, 60, false, 0.7, 3}, {1, 500, 900, true, 0.95, 3}}},
    {"phrases", Word::true_, {{1, 5, 30, false, 0.3, 3}, {1, 12, 15, true, 0.3, 3}}},  // matches that end at once
    {"never", Word::true_, {{1, 200, 400, false, 0.1, 3}}},
    {"never-useless", Word::useless, {{1, 200, 400, false, 0.1, 3}}},
    {"never-boastful", Word::boastful, {{1, 200, 400, false, 0.15, 3}}},
    {"third", Word::true_, {{1, 200, 400, false, 0.3, 3}}},
    {"third-useless", Word::useless, {{1, 200, 400, false, 0.3, 3}}},
};

template <typename T, size_t n>
const T & named(const T (&all)[n], const std::string & name) {
    for (const T & one : all) {
        if (name == one.name) {
            return one;
        }
    }
    refuse("nothing is called " + name);
}

struct Text {
    Tokens                       tokens;
    std::vector<const Stretch *> stretches;  // by token
};

Text make_text(const World & world, size_t n, std::mt19937_64 & random) {
    Text    text;
    int32_t fresh = 0;
    while (text.tokens.size() < n) {
        double total = 0;
        for (const Stretch & stretch : world.stretches) {
            total += stretch.chance;
        }
        double          ticket = std::uniform_real_distribution<>(0, total)(random);
        const Stretch * kind   = &world.stretches.front();
        for (const Stretch & stretch : world.stretches) {
            kind = &stretch;
            if ((ticket -= stretch.chance) <= 0) {
                break;
            }
        }
        const auto length =
            static_cast<size_t>(std::uniform_int_distribution<int32_t>(kind->shortest, kind->longest)(random));
        const bool copied = kind->copied && text.tokens.size() > length;
        size_t     from   = copied ? random() % (text.tokens.size() - length) : 0;
        for (size_t i = 0; i < length; ++i) {
            text.tokens.push_back(copied ? text.tokens[from++] : fresh++);
            text.stretches.push_back(kind);
        }
    }
    text.tokens.resize(n);
    return text;
}

double uniform(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = seed * 0x9e3779b97f4a7c15 + a * 0xbf58476d1ce4e5b9 + b * 0x94d049bb133111eb + c * 0xd6e8feb86659fd93;
    for (int i = 0; i < 3; ++i) {
        x ^= x >> 31;
        x *= 0xbf58476d1ce4e5b9;
    }
    return static_cast<double>((x ^ (x >> 29)) >> 11) * 0x1p-53;
}

// One drafted token: what the selector says of it, and whether it is the text's.
struct Guess {
    float confidence;
    bool  right;
};

// The same for every arm that drafts from here. A Kumaraswamy variable of the stretch's mean stands for the chance.
Guess guess(const World & world, const Text & text, uint64_t seed, size_t anchor, size_t t) {
    const Stretch & stretch = *text.stretches[anchor + 1 + t];
    const double    a       = stretch.guessed * stretch.spread / 1.5;
    const double    b       = (1 - stretch.guessed) * stretch.spread / 1.5;
    const double    u       = uniform(seed, anchor, t, 1);
    double          chance  = std::pow(1 - std::pow(1 - u, 1 / b), 1 / a);
    double          said    = chance;
    if (world.word == Word::useless) {
        chance = stretch.guessed;
    } else if (world.word == Word::boastful) {
        said = 1 - (1 - chance) * (1 - chance);
    }
    const double fall = std::pow(0.98, static_cast<double>(t));  // later positions are harder, and known to be
    return {static_cast<float>(std::clamp(said * fall, 0.05, 1.0)), uniform(seed, anchor, t, 2) < chance * fall};
}

// ---- a run ----------------------------------------------------------------------------------------------------------

struct Setup {
    const Machine *       machine;
    const World *         world;
    uint64_t              seed;
    size_t                n;
    std::set<std::string> flags;
    size_t                n_texts = 1, from = 0;

    bool has(const char * flag) const { return flags.count(flag) > 0; }
};

constexpr int32_t head_width = 7;

// Tokens a second, by what the steps take on average: what policies decide is compared, not their luck with the clock.
double run(const Setup & setup, const Mode & mode, bool verbose) {
    std::mt19937_64 random(setup.seed + 1), text_random(setup.seed);
    const Machine & machine = *setup.machine;
    Policy          policy({head_width, 63, std::nullopt});
    if (!setup.has("uncalibrated")) {
        for (const int32_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64}) {
            policy.set_verify(rows, machine.verify(rows, 0));
        }
        for (int32_t width = 1; width <= head_width; ++width) {
            policy.set_draft(width, machine.draft_of(width));
        }
    }
    const auto noisy = [&](double seconds) {
        const bool stalls = random() % 200 == 0;
        return seconds * std::exp(std::normal_distribution<>(0, 0.2)(random)) * (stalls ? 10 : 1);
    };
    double                tokens = 0, seconds = 0;
    std::array<size_t, 4> by_kind{};
    size_t                n_probes = 0;
    for (size_t t = 0; t < setup.n_texts; ++t) {
        constexpr size_t n_prompt = 200;
        const size_t     n        = n_prompt + setup.n / setup.n_texts;
        const Text       text     = make_text(*setup.world, n + 64, text_random);
        const auto       map_k4v = pd2::make_map_k4v(), mod = pd2::make_mod();
        Tokens           known(text.tokens.begin(), text.tokens.begin() + n_prompt);
        map_k4v->begin(known);
        mod->begin(known);
        policy.begin(mode, setup.has("reproducible"));
        while (known.size() < n) {
            const auto        room    = std::min<int32_t>(63, static_cast<int32_t>(n - known.size()) - 1);
            const pd2::Lookup found[] = {map_k4v->draft(known, 63), mod->draft(known, 63)};
            const pd2::Choice choice  = policy.choose(&found[0], &found[1], room);
            pd2::Round        round;
            round.kind              = choice.kind;
            double            spent = 0;
            std::vector<bool> right;
            if (choice.kind == Kind::head) {
                for (size_t i = 0; i < static_cast<size_t>(choice.width); ++i) {
                    const Guess next = guess(*setup.world, text, setup.seed + t, known.size() - 1, i);
                    if (setup.has("drawn") && !policy.more(round.confidences, next.confidence)) {
                        break;
                    }
                    round.confidences.push_back(next.confidence);
                    right.push_back(next.right);
                }
                round.n_drafted = choice.width;
                round.n_verified =
                    setup.has("drawn") ? static_cast<int32_t>(right.size()) : policy.cut(round.confidences);
                spent               = machine.draft_of(choice.width);
                round.draft_seconds = noisy(spent);
            } else if (choice.kind != Kind::none) {
                const Tokens & drafted = found[choice.kind == Kind::mod].tokens;
                for (size_t i = 0; i < static_cast<size_t>(choice.width); ++i) {
                    right.push_back(drafted[i] == text.tokens[known.size() + i]);
                }
                round.n_drafted = round.n_verified = choice.width;
            }
            while (round.n_accepted < round.n_verified && right[static_cast<size_t>(round.n_accepted)]) {
                ++round.n_accepted;
            }
            const double verify  = machine.verify(round.n_verified + 1, known.size());
            round.verify_seconds = noisy(verify);
            round.committed.assign(
                text.tokens.begin() + static_cast<std::ptrdiff_t>(known.size()),
                text.tokens.begin() + static_cast<std::ptrdiff_t>(known.size()) + round.n_accepted + 1);
            policy.learn(round);
            if (choice.kind == Kind::map_k4v || choice.kind == Kind::mod) {
                (choice.kind == Kind::mod ? mod : map_k4v)->accepted(round.n_verified, round.n_accepted);
            }
            if (known.size() >= n_prompt + setup.from) {
                seconds += spent + verify;
                tokens += static_cast<double>(round.committed.size());
            }
            ++by_kind[static_cast<size_t>(choice.kind)];
            n_probes += choice.probe ? 1 : 0;
            known.insert(known.end(), round.committed.begin(), round.committed.end());
        }
    }
    if (verbose) {
        std::fprintf(stderr, "rounds: %zu none, %zu head, %zu map-k4v, %zu mod; %zu probes\n", by_kind[0], by_kind[1],
                     by_kind[2], by_kind[3], n_probes);
    }
    return tokens / seconds;
}

// auto / plain, best static arm / plain, its name
void simulate(const Setup & setup) {
    const double plain = run(setup, {false, Mode::any, Policy::Lookups::any}, false);
    const double mine  = run(setup, {}, setup.has("verbose"));
    double       best  = 0;
    std::string  name  = "-";
    if (setup.has("alone")) {
        std::printf("%.4f\n", mine / plain);
        return;
    }
    for (const auto lookups : {Policy::Lookups::any, Policy::Lookups::map_k4v, Policy::Lookups::mod}) {
        for (int32_t width = 0; width <= head_width; ++width) {
            const double rate = run(setup, {true, width, lookups}, false);
            if (rate > best) {
                best = rate;
                name = lookups == Policy::Lookups::any ? "" : lookups == Policy::Lookups::mod ? "mod+" : "map-k4v+";
                name += "head" + std::to_string(width);
            }
        }
    }
    std::printf("%.4f %.4f %s\n", mine / plain, best / plain, name.c_str());
}

Setup read_setup(int argc, char ** argv) {
    Setup setup{&named(machines, argv[2]),
                &named(worlds, argv[3]),
                std::strtoull(argv[4], nullptr, 10),
                static_cast<size_t>(std::strtoull(argv[5], nullptr, 10)),
                {}};
    for (int i = 6; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag.rfind("texts=", 0) == 0) {
            setup.n_texts = static_cast<size_t>(std::strtoull(flag.c_str() + 6, nullptr, 10));
        } else if (flag.rfind("from=", 0) == 0) {
            setup.from = static_cast<size_t>(std::strtoull(flag.c_str() + 5, nullptr, 10));
        } else {
            setup.flags.insert(flag);
        }
    }
    return setup;
}

// ---- a script -------------------------------------------------------------------------------------------------------

const char * const kinds[] = {"none", "head", "map-k4v", "mod"};

Kind kind_of(const std::string & name) {
    return static_cast<Kind>(std::find(std::begin(kinds), std::end(kinds), name) - std::begin(kinds));
}

template <typename T>
std::vector<T> rest(std::istringstream & line) {
    std::vector<T> values;
    for (std::string word; line >> word;) {
        values.push_back(static_cast<T>(std::strtod(word.c_str(), nullptr)));  // reads nan and inf, as >> does not
    }
    return values;
}

void run_script() {
    std::unique_ptr<Policy>    policy;
    std::array<pd2::Lookup, 2> found;
    for (std::string whole; std::getline(std::cin, whole);) {
        std::istringstream line(whole);
        std::string        command, what;
        line >> command;
        if (command == "new") {
            const auto     numbers = rest<int32_t>(line);
            Policy::Limits limits{numbers.at(0), numbers.at(1), std::nullopt};
            if (numbers.size() > 2) {
                limits.allowed.emplace(numbers.begin() + 2, numbers.end());
            }
            policy = std::make_unique<Policy>(limits);
        } else if (command == "set") {
            line >> what;
            const auto numbers = rest<double>(line);
            (what == "verify" ? policy->set_verify(static_cast<int32_t>(numbers.at(0)), numbers.at(1))
                              : policy->set_draft(static_cast<int32_t>(numbers.at(0)), numbers.at(1)));
        } else if (command == "begin") {
            Mode mode;
            bool reproducible = false;
            line >> mode.head_width >> what >> reproducible >> mode.speculate;
            mode.lookups = what == "any"       ? Policy::Lookups::any
                           : what == "off"     ? Policy::Lookups::off
                           : what == "map-k4v" ? Policy::Lookups::map_k4v
                                               : Policy::Lookups::mod;
            policy->begin(mode, reproducible);
        } else if (command == "found") {
            pd2::Lookup lookup;
            line >> what >> lookup.match_length;
            lookup.tokens                = rest<int32_t>(line);
            found[what == "mod" ? 1 : 0] = lookup;
        } else if (command == "choose") {
            const pd2::Choice choice = policy->choose(&found[0], &found[1], rest<int32_t>(line).at(0));
            std::printf("%s %d %d\n", kinds[static_cast<size_t>(choice.kind)], choice.width, choice.probe);
            found = {};
        } else if (command == "cut") {
            std::printf("%d\n", policy->cut(rest<float>(line)));
        } else if (command == "more") {
            auto        drawn = rest<float>(line);
            const float next  = drawn.back();
            drawn.pop_back();
            std::printf("%d\n", policy->more(drawn, next));
        } else if (command == "learn") {
            pd2::Round round;
            line >> what;
            round.kind              = kind_of(what);
            const auto numbers      = rest<double>(line);
            const auto whole_number = [&](size_t i) { return static_cast<int32_t>(numbers.at(i)); };
            round.n_drafted         = whole_number(0);
            round.n_verified        = whole_number(1);
            round.n_accepted        = whole_number(2);
            round.ended             = whole_number(3) != 0;
            round.draft_seconds     = numbers.at(4);
            round.verify_seconds    = numbers.at(5);
            const auto committed    = numbers.begin() + 7 + whole_number(6);
            round.committed.assign(numbers.begin() + 7, committed);
            round.confidences.assign(committed, numbers.end());
            policy->learn(round);
        } else if (command == "cost") {
            line >> what;
            const int32_t size = rest<int32_t>(line).at(0);
            std::printf("%.9g\n", what == "verify" ? policy->costs().verify(size) : policy->costs().draft(size));
        } else if (command == "points") {
            line >> what;
            for (const auto & [size, seconds] : (what == "verify" ? policy->costs().verify_curve().points()
                                                                  : policy->costs().draft_curve().points())) {
                std::printf("%d %.9g ", size, seconds);
            }
            std::printf("\n");
        } else {
            refuse("no command " + command);
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc >= 6 && std::string(argv[1]) == "simulate") {
        simulate(read_setup(argc, argv));
    } else if (argc == 2 && std::string(argv[1]) == "list") {
        for (const Machine & machine : machines) {
            std::printf("machine %s\n", machine.name);
        }
        for (const World & world : worlds) {
            std::printf("world %s\n", world.name);
        }
    } else if (argc == 1) {
        run_script();
    } else {
        refuse("usage: policy [simulate MACHINE WORLD SEED N FLAG... | list]");
    }
    return 0;
}
