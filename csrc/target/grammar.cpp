#include "grammar.h"

#include <cctype>
#include <cstdio>
#include <limits>
#include <map>
#include <vector>

#include "error.h"
#include "grammar_rules.h"
#include "llama-grammar.h"

namespace pd2 {

namespace {

constexpr size_t   kMaxText      = 1 << 20;  // bytes
constexpr size_t   kMaxElements  = 1 << 18;  // characters, ranges and references after repetitions are written out
constexpr int      kMaxDepth     = 200;      // parentheses; the parser recurses
constexpr uint64_t kMaxRepeat    = 2000;     // llama.cpp's limit. It takes a larger maximum for "any number"
constexpr size_t   kMaxTokenName = 256;      // bytes between < and >

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-';
}

struct Place {
    size_t line   = 1;
    size_t column = 1;  // in characters
};

Place place_of(const std::string & text, size_t offset) {
    Place place;
    for (size_t i = 0; i < offset && i < text.size(); ++i) {
        if (text[i] == '\n') {
            ++place.line;
            place.column = 1;
        } else {
            place.column += (text[i] & 0xC0) != 0x80;
        }
    }
    return place;
}

[[noreturn]] void fail_at(const std::string & text, size_t offset, const std::string & what) {
    const Place place = place_of(text, offset);
    size_t      end   = offset;
    while (end < text.size() && text[end] != '\n' && text[end] != '\r' && end - offset < 30) {
        ++end;
    }
    while (end < text.size() && (text[end] & 0xC0) == 0x80) {  // not in the middle of a character
        ++end;
    }
    const std::string seen = end > offset ? " (at '" + text.substr(offset, end - offset) + "')" : "";
    fail(PD2_ERROR_ARGUMENT, "grammar, line %zu, column %zu%s: %s", place.line, place.column, seen.c_str(),
         what.c_str());
}

// The offset of the first byte that is not UTF-8, or npos.
size_t first_invalid_utf8(const std::string & text) {
    for (size_t i = 0; i < text.size();) {
        const auto     byte = static_cast<unsigned char>(text[i]);
        const int      n = byte < 0x80 ? 1 : byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
        const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
        uint32_t       value    = n > 1 ? byte & (0x7F >> n) : byte;
        for (int k = 1; k < n; ++k) {
            const bool there = i + k < text.size() && (text[i + k] & 0xC0) == 0x80;
            value            = there ? value << 6 | (text[i + k] & 0x3F) : std::numeric_limits<uint32_t>::max();
            if (!there) {
                break;
            }
        }
        if (n == 0 || value > 0x10FFFF || (n > 1 && value < least[n]) || (value >= 0xD800 && value < 0xE000)) {
            return i;
        }
        i += n;
    }
    return std::string::npos;
}

// One pass over the text before it is parsed: whatever would make the parser recurse, loop or fill the memory.
class Scan {
  public:
    explicit Scan(const std::string & text) : text_(text) {}

    void run() {
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (c == '#') {
                at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
            } else if (c == '"' || c == '[') {
                quoted(c == '"' ? '"' : ']', c == '"' ? "this string is not closed: a '\"' is missing"
                                                      : "these brackets are not closed: a ']' is missing");
            } else if (c == '<') {
                token();
            } else if (c == '(') {
                if (open_.size() >= kMaxDepth) {
                    stop(at_, "parentheses are nested more than " + std::to_string(kMaxDepth) +
                                  " deep: give the inner part a rule of its own");
                }
                open_.push_back(at_++);
            } else if (c == ')') {
                if (open_.empty()) {
                    stop(at_, "this ')' closes nothing");
                }
                open_.pop_back();
                ++at_;
                item(1);
            } else if (c == '{') {
                repetition();
            } else if (c == '*' || c == '+' || c == '?') {
                ++at_;
                repeat(c == '+' ? 1 : 0, 1);
            } else if (is_word(c)) {
                while (at_ < text_.size() && is_word(text_[at_])) {
                    ++at_;
                }
                item(1);
            } else {
                item(c == '.' ? 1 : 0);
                ++at_;
            }
        }
        if (!open_.empty()) {
            stop(open_.back(), "this '(' is not closed");
        }
    }

  private:
    const std::string & text_;
    size_t              at_    = 0;
    size_t              item_  = 0;  // elements of what a repetition that follows would repeat
    size_t              total_ = 0;
    std::vector<size_t> open_;

    [[noreturn]] void stop(size_t offset, const std::string & what) { fail_at(text_, offset, what); }

    void count(size_t n) {
        total_ += n;
        if (total_ > kMaxElements) {
            stop(at_, "the grammar has become longer than " + std::to_string(kMaxElements) +
                          " characters and references here, with repetitions written out: repeat less");
        }
    }

    void item(size_t n) {
        if (n > 0) {
            item_ = n;
            count(n);
        }
    }

    // least copies of the item, then n_rules rules that hold it once each
    void repeat(size_t least, size_t n_rules) {
        count(item_ * (least > 0 ? least - 1 : 0) + n_rules * (item_ + 3));
        item_ = item_ * least + (n_rules > 0 ? 1 : 0);
    }

    void quoted(char end, const char * unclosed) {
        const size_t start = at_++;
        size_t       n     = 0;
        for (; at_ < text_.size() && text_[at_] != end; ++n) {
            at_ += text_[at_] == '\\' ? 2 : 1;
        }
        if (at_ >= text_.size()) {
            stop(start, unclosed);
        }
        ++at_;
        item(n);
    }

    void token() {
        const size_t start = at_;
        const size_t end   = text_.find('>', at_);
        if (end == std::string::npos || end - start > kMaxTokenName) {
            stop(start, "a token must end in '>', as <[123]> and <name> do");
        }
        if (text_.compare(start, 2, "<[") == 0 && end - start > 12) {
            stop(start, "no token has such a number");
        }
        at_ = end + 1;
        item(1);
    }

    uint64_t number() {
        const size_t start = at_;
        uint64_t     value = 0;
        for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_) {
            value = std::min<uint64_t>(value * 10 + (text_[at_] - '0'), kMaxRepeat + 1);
        }
        if (at_ == start) {
            stop(at_, "a number is missing: a repetition is {3}, {3,} or {3,5}");
        }
        if (value > kMaxRepeat) {
            stop(start, "more than " + std::to_string(kMaxRepeat) + " repetitions: use *, + or a smaller number");
        }
        return value;
    }

    void blanks() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) {
            ++at_;
        }
    }

    void repetition() {
        const size_t start = at_++;
        blanks();
        const uint64_t least = number();
        uint64_t       most  = least;
        bool           open  = false;
        blanks();
        if (at_ < text_.size() && text_[at_] == ',') {
            ++at_;
            blanks();
            open = at_ < text_.size() && text_[at_] == '}';
            most = open ? least : number();
            blanks();
        }
        if (at_ >= text_.size() || text_[at_] != '}') {
            stop(start, "this repetition is not closed: it is {3}, {3,} or {3,5}");
        }
        if (most < least) {
            stop(start, "this repetition's maximum is less than its minimum");
        }
        ++at_;
        repeat(least, open ? 1 : most - least);
    }
};

// llama.cpp's parser ends many of its messages in " at " and the rest of the text.
[[noreturn]] void fail_as_parser(const std::string & text, size_t rule_start, const std::string & message) {
    if (message.rfind("invalid token '", 0) == 0) {
        const std::string token = message.substr(15, message.size() - 16);
        fail_at(text, text.find(token, rule_start), "the target has no token " + token);
    }
    for (size_t at = message.find(" at "); at != std::string::npos; at = message.find(" at ", at + 1)) {
        const std::string rest = message.substr(at + 4);
        if (rest.size() <= text.size() && text.compare(text.size() - rest.size(), rest.size(), rest) == 0) {
            fail_at(text, text.size() - rest.size(), message.substr(0, at));
        }
    }
    fail_at(text, rule_start, message.substr(0, 200));
}

size_t skip_blank(const std::string & text, size_t at) {
    while (at < text.size()) {
        if (text[at] == '#') {
            at = std::min(text.find_first_of("\r\n", at), text.size());
        } else if (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n') {
            ++at;
        } else {
            break;
        }
    }
    return at;
}

}  // namespace

void check_grammar(const std::string & text, const llama_vocab * vocab) {
    if (text.size() > kMaxText) {
        fail(PD2_ERROR_ARGUMENT, "the grammar has %zu bytes: at most %zu are taken", text.size(), kMaxText);
    }
    if (const size_t at = text.find('\0'); at != std::string::npos) {
        fail_at(text, at, "a NUL character, which no text of the target can hold: remove it");
    }
    if (const size_t at = first_invalid_utf8(text); at != std::string::npos) {
        const Place place = place_of(text, at);
        fail(PD2_ERROR_ARGUMENT, "grammar, line %zu, column %zu: byte 0x%02X is not UTF-8; save the grammar as UTF-8",
             place.line, place.column, static_cast<unsigned char>(text[at]));
    }
    Scan(text).run();

    llama_grammar_parser          parser(vocab);
    std::map<std::string, size_t> definitions;  // where each rule's starts
    for (size_t at = skip_blank(text, 0); at < text.size();) {
        size_t end = at;
        while (end < text.size() && is_word(text[end])) {
            ++end;
        }
        const std::string name     = text.substr(at, end - at);
        const auto [known, is_new] = definitions.emplace(name, at);
        if (!is_new) {
            fail_at(text, at,
                    "rule '" + name.substr(0, 100) + "' is already defined in line " +
                        std::to_string(place_of(text, known->second).line) + ": join the two with '|' or rename one");
        }
        try {
            at = static_cast<size_t>(parser.parse_rule(text.c_str() + at) - text.c_str());
        } catch (const std::exception & error) {
            fail_as_parser(text, at, error.what());
        }
    }
    if (definitions.empty()) {
        fail(PD2_ERROR_ARGUMENT,
             "the grammar is empty: it needs at least a rule 'root', as in root ::= \"yes\" | \"no\"");
    }
    if (definitions.find("root") == definitions.end()) {
        fail(PD2_ERROR_ARGUMENT,
             "the grammar has no rule 'root', with which every text starts: call its first rule root");
    }
    check_grammar_rules(parser, vocab, [&](const std::string & rule) {
        const auto found = definitions.find(rule);
        return found == definitions.end() ? 0 : place_of(text, found->second).line;
    });
}

}  // namespace pd2
