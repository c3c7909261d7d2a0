#include "vocabulary.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "error.h"

namespace pd2 {

std::vector<int32_t> tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                              bool parse_special) {
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2)) {
        fail(PD2_ERROR_ARGUMENT, "the text has %zu bytes, more than a tokenizer can count: split it", text.size());
    }
    const auto           length = static_cast<int32_t>(text.size());
    std::vector<int32_t> tokens(length / 2 + 16);
    const auto           fill = [&] {
        return llama_tokenize(vocab, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()),
                                        add_special, parse_special);
    };
    try {
        int32_t n = fill();
        if (n < 0) {  // minus the number needed
            tokens.resize(-static_cast<int64_t>(n));
            n = fill();
        }
        tokens.resize(std::max(n, 0));
    } catch (const std::out_of_range &) {  // a vocabulary without the byte tokens it should have
        fail(PD2_ERROR_MODEL_FILE,
             "the target's vocabulary cannot spell this text, as it lacks tokens for single bytes: convert the target "
             "again");
    }
    for (const int32_t token : tokens) {
        if (token < 0 || token >= n_vocab) {
            fail(
                PD2_ERROR_MODEL_FILE,
                "the target's vocabulary cannot spell this text, as it has no unknown token: convert the target again");
        }
    }
    return tokens;
}

std::string token_bytes(const llama_vocab * vocab, int32_t token, bool special) {
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    if (token < 0 || token >= n_vocab) {
        fail(PD2_ERROR_ARGUMENT, "token %d does not exist: the target's vocabulary has ids 0 to %d", token,
             n_vocab - 1);
    }
    std::string bytes(64, '\0');
    int32_t     n = llama_token_to_piece(vocab, token, bytes.data(), static_cast<int32_t>(bytes.size()), 0, special);
    if (n < 0) {
        bytes.resize(-n);
        n = llama_token_to_piece(vocab, token, bytes.data(), static_cast<int32_t>(bytes.size()), 0, special);
    }
    bytes.resize(std::max(n, 0));
    return bytes;
}

std::vector<int32_t> ranked_tokens(const llama_vocab * vocab) {
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    const bool    scored  = llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_BPE;
    const auto    group   = [&](int32_t token) {
        const int attributes = llama_vocab_get_attr(vocab, token);
        const int last       = LLAMA_TOKEN_ATTR_UNUSED | LLAMA_TOKEN_ATTR_UNDEFINED;
        const int first      = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_BYTE;
        return (attributes & last) != 0 ? 2 : (attributes & first) != 0 ? 0 : 1;
    };
    struct Rank {
        int     group;
        float   score;
        int32_t token;
    };
    std::vector<Rank> ranks;
    for (int32_t token = 0; token < n_vocab; ++token) {
        ranks.push_back({group(token), scored ? -llama_vocab_get_score(vocab, token) : 0, token});
    }
    std::sort(ranks.begin(), ranks.end(), [](const Rank & a, const Rank & b) {
        return std::tie(a.group, a.score, a.token) < std::tie(b.group, b.score, b.token);
    });
    std::vector<int32_t> tokens;
    for (const Rank & rank : ranks) {
        tokens.push_back(rank.token);
    }
    return tokens;
}

}  // namespace pd2
