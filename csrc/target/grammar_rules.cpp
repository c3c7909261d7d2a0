#include "grammar_rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "error.h"

namespace pd2 {

namespace {

constexpr uint64_t kMaxStarts = 2000;     // places in the rules that a text may be at, when it stands before one rule
constexpr uint64_t kMaxChain  = 1000;     // rules one in another before a character is read; llama.cpp recurses
constexpr uint64_t kMaxVisits = 1000000;  // of rules in llama.cpp's search for left recursion
constexpr uint64_t kMaxPaths  = 50000;    // ways to read one token
constexpr size_t   kMaxStacks = 4000;     // places a text may be at
constexpr int      kMaxSteps  = 64;      // characters that ambiguity is followed: of a text, or of a run as tokens hold
constexpr int      kMaxToken  = 16;      // characters of a token that is no run of one; longer ones are rare
constexpr int      kMaxWork   = 200000;  // stacks looked at when following it, a fraction of a second
constexpr int      kMaxWorkOf = 40000;   // from one rule's start
constexpr uint32_t kLastChar  = 0x10FFFF;

using Element = llama_grammar_element;
using Rules   = llama_grammar_rules;

bool is_end(const Element & e) {
    return e.type == LLAMA_GRETYPE_END || e.type == LLAMA_GRETYPE_ALT;
}

// Not the first element of a character class
bool is_rest(const Element & e) {
    return e.type == LLAMA_GRETYPE_CHAR_ALT || e.type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
}

const Element * next_item(const Element * e) {
    do {
        ++e;
    } while (is_rest(*e));
    return e;
}

// Calls visit(lowest, highest) for the characters and ranges of a class
template <typename Visit>
void for_ranges(const Element * e, Visit && visit) {
    do {
        const bool range = e[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
        visit(e->value, range ? e[1].value : e->value);
        e += range ? 2 : 1;
    } while (e->type == LLAMA_GRETYPE_CHAR_ALT);
}

bool matches(const Element * e, uint32_t c) {
    if (e->type == LLAMA_GRETYPE_CHAR_ANY) {
        return true;
    }
    if (e->type != LLAMA_GRETYPE_CHAR && e->type != LLAMA_GRETYPE_CHAR_NOT) {
        return false;
    }
    bool found = false;
    for_ranges(e, [&](uint32_t low, uint32_t high) { found = found || (low <= c && c <= high); });
    return found == (e->type == LLAMA_GRETYPE_CHAR);
}

bool can_match(const Element * e) {
    bool some = e->type != LLAMA_GRETYPE_CHAR;
    if (!some) {
        for_ranges(e,
                   [&](uint32_t low, uint32_t high) { some = some || (low <= high && high > 0 && low <= kLastChar); });
    }
    return some;
}

using LineOf = std::function<size_t(const std::string &)>;

using Alternative = std::vector<const Element *>;  // its items: references and first elements of character classes

class Analysis {
  public:
    Analysis(const llama_grammar_parser & parser, LineOf line_of)
        : rules_(parser.rules),
          names_(parser.symbol_ids.size()),
          line_of_(std::move(line_of)),
          root_(parser.symbol_ids.at("root")) {
        for (const auto & [name, id] : parser.symbol_ids) {
            names_[id] = name;
        }
    }

    void run(const llama_vocab * vocab) {
        check_references();
        check_elements(vocab);
        for (const llama_grammar_rule & rule : rules_) {
            split(rule);
        }
        check_language();
        check_starts();
        check_ambiguity();
    }

  private:
    struct Edge {  // a rule may stand where another starts
        size_t to;
        bool   seen;  // llama.cpp looks for left recursion along it
    };

    const Rules &                         rules_;
    std::vector<std::string>              names_;
    LineOf                                line_of_;
    size_t                                root_;
    std::vector<std::vector<Alternative>> alternatives_;  // of each rule
    std::vector<bool>                     nullable_;

    // "rule 'item' (line 3)"; a parenthesis or repetition goes by the rule it stands in
    std::string named(size_t rule) const {
        const std::string name = names_[rule].substr(0, names_[rule].find('_'));
        const size_t      line = line_of_(name);
        return "rule '" + name.substr(0, 100) + "'" + (line == 0 ? "" : " (line " + std::to_string(line) + ")");
    }

    [[noreturn]] static void stop(const std::string & what) { fail(PD2_ERROR_ARGUMENT, "grammar: %s", what.c_str()); }

    void check_references() const {
        for (size_t rule = 0; rule < rules_.size(); ++rule) {
            for (const Element & e : rules_[rule]) {
                if (e.type == LLAMA_GRETYPE_RULE_REF && (e.value >= rules_.size() || rules_[e.value].empty())) {
                    stop("rule '" + names_[e.value].substr(0, 100) + "', which " + named(rule) +
                         " uses, is not defined: define it or correct the name");
                }
            }
        }
    }

    void check_elements(const llama_vocab * vocab) const {
        for (size_t rule = 0; rule < rules_.size(); ++rule) {
            for (const Element * e = rules_[rule].data(); e->type != LLAMA_GRETYPE_END; ++e) {
                if (e->type == LLAMA_GRETYPE_CHAR_RNG_UPPER && e->value < e[-1].value) {
                    stop(named(rule) + " has a character range that runs backwards: exchange its ends");
                }
                if (vocab && (e->type == LLAMA_GRETYPE_TOKEN || e->type == LLAMA_GRETYPE_TOKEN_NOT)) {
                    check_token(rule, *e, vocab);
                }
            }
        }
    }

    void check_token(size_t rule, const Element & e, const llama_vocab * vocab) const {
        const int32_t n_vocab = llama_vocab_n_tokens(vocab);
        if (e.value >= static_cast<uint32_t>(n_vocab)) {
            stop(named(rule) + " names token " + std::to_string(e.value) + ", but the target's are 0 to " +
                 std::to_string(n_vocab - 1));
        }
        if (e.type == LLAMA_GRETYPE_TOKEN && llama_vocab_is_eog(vocab, static_cast<llama_token>(e.value))) {
            stop(named(rule) + " asks for token " + std::to_string(e.value) +
                 ", which ends the text: leave it out, a text may end wherever the grammar is complete");
        }
    }

    void split(const llama_grammar_rule & rule) {
        std::vector<Alternative> split(1);
        for (const Element * e = rule.data(); e->type != LLAMA_GRETYPE_END;) {
            if (e->type == LLAMA_GRETYPE_ALT) {
                split.emplace_back();
                ++e;
            } else {
                split.back().push_back(e);
                e = next_item(e);
            }
        }
        alternatives_.push_back(std::move(split));
    }

    // The rules that have an alternative made of such rules and of characters for which `counts` is true.
    std::vector<bool> closure(const std::function<bool(const Element *)> & counts) const {
        std::vector<size_t>              missing, owner, todo;  // by alternative; todo: rules found
        std::vector<std::vector<size_t>> uses(rules_.size());   // alternatives that a rule occurs in
        std::vector<bool>                found(rules_.size());
        const auto                       find = [&](size_t rule) {
            if (!found[rule]) {
                found[rule] = true;
                todo.push_back(rule);
            }
        };
        for (size_t rule = 0; rule < rules_.size(); ++rule) {
            for (const Alternative & alternative : alternatives_[rule]) {
                size_t n = 0;
                for (const Element * e : alternative) {
                    const bool reference = e->type == LLAMA_GRETYPE_RULE_REF;
                    n += reference || !counts(e);
                    if (reference) {
                        uses[e->value].push_back(missing.size());
                    }
                }
                missing.push_back(n);
                owner.push_back(rule);
                if (n == 0) {
                    find(rule);
                }
            }
        }
        while (!todo.empty()) {
            const size_t rule = todo.back();
            todo.pop_back();
            for (const size_t alternative : uses[rule]) {
                if (--missing[alternative] == 0) {
                    find(owner[alternative]);
                }
            }
        }
        return found;
    }

    void check_language() {
        nullable_                   = closure([](const Element *) { return false; });
        const std::vector<bool> can = closure(can_match);
        if (!can[root_]) {
            stop("no text matches " + named(root_) +
                 ": every way through it goes on without an end, or needs a character that does not exist");
        }
        std::vector<bool>   reached(rules_.size());
        std::vector<size_t> todo = {root_};
        reached[root_]           = true;
        while (!todo.empty()) {
            const size_t rule = todo.back();
            todo.pop_back();
            for (const Alternative & alternative : alternatives_[rule]) {
                const bool possible = std::all_of(alternative.begin(), alternative.end(), [&](const Element * e) {
                    return e->type == LLAMA_GRETYPE_RULE_REF ? static_cast<bool>(can[e->value]) : can_match(e);
                });
                for (size_t i = 0; possible && i < alternative.size(); ++i) {
                    const Element * e = alternative[i];
                    if (e->type != LLAMA_GRETYPE_RULE_REF) {
                        return;  // a text with this character
                    }
                    if (!reached[e->value]) {
                        reached[e->value] = true;
                        todo.push_back(e->value);
                    }
                }
            }
        }
        stop("only the empty text matches " + named(root_) + ": give it at least one character to generate");
    }

    // Left recursion, and the costs that grow with the rules a text may stand before at the same time.
    void check_starts() const {
        std::vector<std::vector<Edge>>   edges(rules_.size());
        std::vector<std::vector<size_t>> from(rules_.size());
        std::vector<uint64_t>            starts(rules_.size()), visits(rules_.size(), 1), chain(rules_.size(), 1);
        std::vector<size_t>              n_open(rules_.size()), todo;

        const auto is_empty = [](const Alternative & alternative) { return alternative.empty(); };
        for (size_t rule = 0; rule < rules_.size(); ++rule) {
            visits[rule] += rules_[rule].size() / 8;
            for (const Alternative & alternative : alternatives_[rule]) {
                bool seen = true, passed = true;
                for (size_t i = 0; passed && i < alternative.size(); ++i) {
                    const Element * e = alternative[i];
                    passed            = e->type == LLAMA_GRETYPE_RULE_REF && nullable_[e->value];
                    if (e->type != LLAMA_GRETYPE_RULE_REF) {
                        ++starts[rule];
                        break;
                    }
                    // X ::= S X |, which S* stands for: where S may be empty the text stays where it is
                    const bool harmless = e->value == rule && i + 1 == alternative.size() && !seen;
                    if (!harmless) {
                        edges[rule].push_back({e->value, seen});
                        from[e->value].push_back(rule);
                        ++n_open[rule];
                    }
                    const auto & inner = alternatives_[e->value];
                    seen               = seen && std::any_of(inner.begin(), inner.end(), is_empty);
                }
                starts[rule] += passed;
            }
            if (n_open[rule] == 0) {
                todo.push_back(rule);
            }
        }

        size_t n_done = 0;
        while (!todo.empty()) {  // rules whose starts are all known
            const size_t rule = todo.back();
            todo.pop_back();
            ++n_done;
            for (const Edge & edge : edges[rule]) {
                starts[rule] = std::min(starts[rule] + starts[edge.to], kMaxStarts + 1);
                chain[rule]  = std::max(chain[rule], chain[edge.to] + 1);
                visits[rule] = std::min(visits[rule] + (edge.seen ? visits[edge.to] : 0), kMaxVisits + 1);
            }
            if (starts[rule] > kMaxStarts) {
                stop(named(rule) + " can begin in more than " + std::to_string(kMaxStarts) +
                     " ways, each of which would be tried for every token: use fewer alternatives");
            }
            if (chain[rule] > kMaxChain || visits[rule] > kMaxVisits) {
                stop(named(rule) +
                     " starts with rules that start with rules, too many of them to follow: write the "
                     "first ones out");
            }
            for (const size_t user : from[rule]) {
                if (--n_open[user] == 0) {
                    todo.push_back(user);
                }
            }
        }
        if (n_done < rules_.size()) {
            stop_at_left_recursion(edges, n_open);
        }
    }

    [[noreturn]] void stop_at_left_recursion(const std::vector<std::vector<Edge>> & edges,
                                             const std::vector<size_t> &            n_open) const {
        size_t rule = 0;
        while (n_open[rule] == 0) {
            ++rule;
        }
        for (std::vector<bool> passed(rules_.size()); !passed[rule];) {  // until the cycle has been closed
            passed[rule]        = true;
            const auto & onward = edges[rule];
            rule =
                std::find_if(onward.begin(), onward.end(), [&](const Edge & edge) { return n_open[edge.to] > 0; })->to;
        }
        stop(named(rule) +
             " comes back to itself before any character is read (left recursion, or a repetition of "
             "something that may be empty): put what it starts with first, as in list ::= item (\",\" item)*");
    }

    using Stack = llama_grammar_stack;

    // What a text may stand before when it has come to `stack`, as llama.cpp finds it. `visit` gets each stack once.
    template <typename Visit>
    void expand(Stack stack, int & work, Visit && visit) const {
        std::set<Stack>    seen;
        std::vector<Stack> todo = {std::move(stack)};
        while (!todo.empty() && work > 0) {
            const auto [entry, is_new] = seen.insert(std::move(todo.back()));
            todo.pop_back();
            --work;
            if (!is_new) {
                continue;
            }
            if (entry->empty() || entry->back()->type != LLAMA_GRETYPE_RULE_REF) {
                visit(*entry);
                continue;
            }
            const Element * reference = entry->back();
            for (const Alternative & alternative : alternatives_[reference->value]) {
                Stack next(entry->begin(), entry->end() - 1);
                if (!is_end(reference[1])) {
                    next.push_back(reference + 1);
                }
                if (!alternative.empty()) {
                    next.push_back(alternative.front());
                }
                todo.push_back(std::move(next));
            }
        }
    }

    using Paths = std::map<Stack, uint64_t>;  // ways to come to each stack

    // Reads texts from each rule's start that can be read in many ways: one whose characters are chosen for that, and
    // runs of one character. llama.cpp follows every way through a token apart; equal stacks become one at its end.
    void check_ambiguity() const {
        int work = kMaxWork;
        for (size_t i = 0; i <= rules_.size() && work > 0; ++i) {
            const size_t rule = i == 0 ? root_ : i - 1;
            int          left = std::min(work, kMaxWorkOf);
            Paths        start;
            for (const Alternative & alternative : alternatives_[rule]) {
                expand(alternative.empty() ? Stack() : Stack{alternative.front()}, left,
                       [&](const Stack & stack) { start[stack] = 1; });
            }
            follow(rule, start, nullptr, work);
            for (const uint32_t c : characters(start)) {
                follow(rule, start, &c, work);
            }
        }
    }

    // run: the character to read, over and over; nullptr: the most ambiguous one at each step
    void follow(size_t rule, Paths paths, const uint32_t * run, int & work) const {
        const int before = std::min(work, kMaxWorkOf);
        int       left   = before;
        for (int step = 0; step < kMaxSteps && left > 0 && !paths.empty(); ++step) {
            const uint32_t c       = run ? *run : most_ambiguous(paths);
            uint64_t       n_paths = 0;
            Paths          next;
            for (const auto & [stack, n] : paths) {
                if (stack.empty() || !matches(stack.back(), c)) {
                    continue;
                }
                n_paths += n;
                Stack after(stack.begin(), stack.end() - 1);
                if (const Element * onward = next_item(stack.back()); !is_end(*onward)) {
                    after.push_back(onward);
                }
                const uint64_t ways = n;
                expand(std::move(after), left, [&](const Stack & found) { next[found] += ways; });
            }
            if (n_paths > kMaxPaths || next.size() > kMaxStacks || (left <= 0 && before == kMaxWorkOf)) {
                stop(named(rule) + " can read the same text in too many ways, " +
                     std::to_string(std::max<uint64_t>(n_paths, next.size())) + " for one of " +
                     std::to_string(step + 1) +
                     " characters, all of which would be followed: avoid repetitions of "
                     "repetitions and alternatives that start alike");
            }
            paths = std::move(next);
            if (!run && (step + 1) % kMaxToken == 0) {
                for (auto & [stack, n] : paths) {
                    n = 1;
                }
            }
        }
        work -= before - left;
    }

    // A few that may come next
    static std::set<uint32_t> characters(const Paths & paths) {
        std::set<uint32_t> found = {' ', 'a', '0', '\n'};
        for (const auto & [stack, n] : paths) {
            if (!stack.empty() && stack.back()->type == LLAMA_GRETYPE_CHAR && found.size() < 12) {
                for_ranges(stack.back(), [&](uint32_t low, uint32_t) { found.insert(low); });
            }
        }
        return found;
    }

    // The one of them that most paths read
    static uint32_t most_ambiguous(const Paths & paths) {
        uint32_t best   = ' ';
        uint64_t n_best = 0;
        for (const uint32_t c : characters(paths)) {
            uint64_t n_paths = 0;
            for (const auto & [stack, n] : paths) {
                n_paths += !stack.empty() && matches(stack.back(), c) ? n : 0;
            }
            if (n_paths > n_best) {
                best   = c;
                n_best = n_paths;
            }
        }
        return best;
    }
};

}  // namespace

void check_grammar_rules(const llama_grammar_parser & parser, const llama_vocab * vocab, const LineOf & line_of) {
    Analysis(parser, line_of).run(vocab);
}

}  // namespace pd2
