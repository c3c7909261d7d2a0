// Our samplers and acceptance rule on rows of one's own, llama.cpp's samplers over whole vocabularies beside them:
//
//     sampling_oracle VOCABULARY.gguf < requests > answers
//
// Everything is binary, of this machine's byte order, and n_vocab long where nothing is said. A request:
//     int32   n_draws, n_bias, n_read, top_k, penalty_last_n
//     float32 temperature, top_p, min_p, typical_p, repeat, presence and frequency penalty
//     int32 [n_bias] and float32 [n_bias] tokens and bias; int32 [n_read] tokens of a text before
// With n_draws 0 follows a row, float32, and the answer is int32 0 and two distributions, float64: ours, llama.cpp's; or int32 1
// where ours refuses the row, or 2 where our distribution contradicts itself.
// Otherwise follow
//     int32   n_draft, k, seed, then [n_draft, k] candidates; float32 [n_draft, k] what they are proposed with
//     float32 [n_draft + 1, n_vocab] rows
// and the answer to each of n_draws rounds, drafted as proposed, is int32: how many tokens were accepted, how many rows were sampled,
// and a text of n_draft + 1 tokens. Where the round committed fewer, the rest is drawn from the rows alone.

#include <cstring>
#include <iterator>

#include "error.h"
#include "llama_chain.h"
#include "speculation/acceptance.h"
#include "target/llama_sampler.h"

namespace {

constexpr int32_t kContextSize = 4096;

template <typename T>
bool read(T * values, size_t n) {
    return std::fread(values, sizeof(T), n, stdin) == n;
}

template <typename T>
std::vector<T> read_vector(size_t n) {
    std::vector<T> values(n);
    if (!read(values.data(), n)) {
        std::exit(1);
    }
    return values;
}

template <typename T>
void write(const std::vector<T> & values) {
    std::fwrite(values.data(), sizeof(T), values.size(), stdout);
}

// Whether what is asked about single tokens and blocks is what the blocks list.
bool consistent(const pd2::Distribution & p, size_t n_vocab, std::vector<double> & dense) {
    std::vector<int32_t> tokens;
    std::vector<double>  probabilities;
    for (size_t block = 0; block < p.n_blocks(); ++block) {
        p.list(block, tokens, probabilities);
        double mass = 0;
        for (size_t i = 0; i < tokens.size(); ++i) {
            if (p.block_of(tokens[i]) != block) {
                return false;
            }
            dense[static_cast<size_t>(tokens[i])] += probabilities[i];
            mass += probabilities[i];
        }
        if (std::fabs(mass - p.mass(block)) > 2e-6 * mass + 1e-15) {
            return false;
        }
    }
    for (size_t token = 0; token < n_vocab; ++token) {
        if (p.of(static_cast<int32_t>(token)) != dense[token]) {
            return false;
        }
    }
    return true;
}

// What llama.cpp's samplers leave of all tokens; those that are forbidden are none.
std::vector<double> reference(const pd2::SamplingParams & params, const std::vector<int32_t> & text,
                              const std::vector<float> & logits) {
    const Chain before = make_chain(), after = make_chain();
    add_adjustments(*before, static_cast<int32_t>(logits.size()), params, kContextSize);
    add_truncations(*after, params);
    for (const int32_t token : text) {
        llama_sampler_accept(before.get(), token);
    }
    std::vector<llama_token_data> data;
    for (size_t i = 0; i < logits.size(); ++i) {
        data.push_back({static_cast<llama_token>(i), logits[i], 0});
    }
    llama_token_data_array array = {data.data(), data.size(), -1, false};
    llama_sampler_apply(before.get(), &array);
    std::vector<llama_token_data> possible;
    for (llama_token_data & one : data) {
        if (one.logit > -INFINITY) {
            one.logit = std::min(one.logit, std::numeric_limits<float>::max());
            possible.push_back(one);
        }
    }
    std::vector<double> result(logits.size());
    const auto          less = [](const auto & a, const auto & b) { return a.logit < b.logit; };
    if (params.temperature == 0) {
        result[static_cast<size_t>(std::max_element(possible.begin(), possible.end(), less)->id)] = 1;
        return result;
    }
    array = {possible.data(), possible.size(), -1, false};
    llama_sampler_apply(after.get(), &array);
    const auto top   = static_cast<double>(std::max_element(array.data, array.data + array.size, less)->logit);
    double     total = 0;
    for (size_t i = 0; i < array.size; ++i) {
        double & p = result[static_cast<size_t>(array.data[i].id)];
        p = std::exp((static_cast<double>(array.data[i].logit) - top) / static_cast<double>(params.temperature));
        total += p;
    }
    for (double & p : result) {
        p /= total;
    }
    return result;
}

void compare(pd2::Sampler & sampler, const pd2::SamplingParams & params, const std::vector<int32_t> & text,
             size_t n_vocab) {
    const auto          logits = read_vector<float>(n_vocab);
    std::vector<double> ours(n_vocab);
    try {
        const bool good = consistent(sampler.distribution(logits.data()), n_vocab, ours);
        write(std::vector<int32_t>{good ? 0 : 2});
    } catch (const pd2::Error &) {
        write(std::vector<int32_t>{1});
        return;
    }
    write(ours);
    write(reference(params, text, logits));
}

void draw(pd2::Sampler & sampler, int32_t n_draws, size_t n_vocab) {
    const auto    shape   = read_vector<int32_t>(3);
    const int32_t n_draft = shape[0], k = shape[1];
    const auto    n_candidates = static_cast<size_t>(n_draft * k);
    const auto    candidates   = read_vector<int32_t>(n_candidates);
    const auto    q            = read_vector<float>(n_candidates);
    const auto    rows         = read_vector<float>(static_cast<size_t>(n_draft + 1) * n_vocab);
    const auto  p = [&](int32_t row) { return sampler.distribution(rows.data() + static_cast<size_t>(row) * n_vocab); };
    pd2::Random random(static_cast<uint64_t>(shape[2]));
    for (int32_t i = 0; i < n_draws; ++i) {
        std::vector<pd2::Proposal> draft;
        for (int32_t row = 0; row < n_draft; ++row) {
            const std::vector<float> weights(q.begin() + row * k, q.begin() + (row + 1) * k);
            const auto               token = static_cast<size_t>(row * k) + pd2::draw_index(weights, 1, random);
            draft.push_back({candidates[token], k, candidates.data() + row * k, q.data() + row * k});
        }
        pd2::Judge judge(draft, random);
        int32_t    n_rows = 0;
        while (judge.see(n_rows, p(n_rows))) {
            ++n_rows;
        }
        std::vector<int32_t> answer = {judge.n_accepted(), n_rows + 1};
        for (int32_t row = 0; row < judge.n_accepted(); ++row) {
            answer.push_back(draft[static_cast<size_t>(row)].token);
        }
        answer.push_back(judge.draw_next());
        for (int32_t row = judge.n_accepted() + 1; row <= n_draft; ++row) {
            answer.push_back(pd2::draw(p(row), random));
        }
        write(answer);
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: sampling_oracle VOCABULARY.gguf\n");
        return 2;
    }
    const Model         model   = load_vocabulary(argv[1]);
    const llama_vocab * vocab   = llama_model_get_vocab(model.get());
    const auto          n_vocab = static_cast<size_t>(llama_vocab_n_tokens(vocab));
    int32_t             counts[5];
    while (read(counts, std::size(counts))) {
        const auto          values = read_vector<float>(7);
        pd2::SamplingParams params;
        params.top_k             = counts[3];
        params.penalty_last_n    = counts[4];
        params.temperature       = values[0];
        params.top_p             = values[1];
        params.min_p             = values[2];
        params.typical_p         = values[3];
        params.repeat_penalty    = values[4];
        params.presence_penalty  = values[5];
        params.frequency_penalty = values[6];
        const auto biased        = read_vector<int32_t>(static_cast<size_t>(counts[1]));
        const auto bias          = read_vector<float>(static_cast<size_t>(counts[1]));
        for (size_t i = 0; i < bias.size(); ++i) {
            params.logit_bias.emplace_back(biased[i], bias[i]);
        }
        const auto text    = read_vector<int32_t>(static_cast<size_t>(counts[2]));
        const auto sampler = pd2::make_sampler(vocab, params, kContextSize);
        for (const int32_t token : text) {
            sampler->read(token);
        }
        if (counts[0] == 0) {
            compare(*sampler, params, text, n_vocab);
        } else {
            draw(*sampler, counts[0], n_vocab);
        }
        std::fflush(stdout);
    }
    return 0;
}
