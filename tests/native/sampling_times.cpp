// How long one verified row takes to sample, ours and llama.cpp's chain beside it, on one thread:
//
//     sampling_times VOCABULARY.gguf ROUNDS
//
// Rows look like a model's: most logits normally distributed, a peaked head above them. Eight lie one behind the other, as a
// verified draft's do. Prints one line a setting: name, our median and llama.cpp's, in milliseconds.

#include <chrono>
#include <random>

#include "llama_chain.h"
#include "speculation/acceptance.h"
#include "target/llama_sampler.h"

namespace {

constexpr int32_t kRows        = 8;
constexpr int32_t kContextSize = 4096;

std::vector<float> make_rows(size_t n_vocab) {
    std::mt19937                    random(1);
    std::normal_distribution<float> body(0, 2.5F);
    std::vector<float>              rows(kRows * n_vocab);
    for (float & logit : rows) {
        logit = body(random);
    }
    for (size_t row = 0; row < kRows; ++row) {
        for (int rank = 0; rank < 200; ++rank) {  // about what a language model is torn between
            rows[row * n_vocab + random() % n_vocab] = 22.0F - 2.2F * std::log1p(static_cast<float>(rank));
        }
    }
    return rows;
}

class Llama {
  public:
    Llama(int32_t n_vocab, const pd2::SamplingParams & params) : chain_(make_chain()) {
        add_adjustments(*chain_, n_vocab, params, kContextSize);
        if (params.temperature > 0) {
            add_truncations(*chain_, params);
            llama_sampler_chain_add(chain_.get(), llama_sampler_init_temp(params.temperature));
            llama_sampler_chain_add(chain_.get(), llama_sampler_init_dist(1));
        } else {
            llama_sampler_chain_add(chain_.get(), llama_sampler_init_greedy());
        }
        candidates_.resize(static_cast<size_t>(n_vocab));
    }

    llama_token sample(const float * logits) {
        for (size_t i = 0; i < candidates_.size(); ++i) {
            candidates_[i] = {static_cast<llama_token>(i), logits[i], 0};
        }
        llama_token_data_array array = {candidates_.data(), candidates_.size(), -1, false};
        llama_sampler_apply(chain_.get(), &array);
        return array.data[array.selected].id;
    }

    void accept(llama_token token) { llama_sampler_accept(chain_.get(), token); }

  private:
    Chain                         chain_;
    std::vector<llama_token_data> candidates_;
};

double median(std::vector<double> & values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

struct Setting {
    const char *        name;
    pd2::SamplingParams params;
};

std::vector<Setting> settings() {
    std::vector<Setting> result;
    const auto           add = [&](const char * name, float temperature, auto set) {
        pd2::SamplingParams params;
        params.temperature = temperature;
        set(params);
        result.push_back({name, params});
    };
    add("greedy", 0, [](auto &) {});
    add("greedy, repeat penalty 1.1", 0, [](auto & p) { p.repeat_penalty = 1.1F; });
    const auto bar = [](auto & p) { p.top_k = 40, p.top_p = 0.95F, p.min_p = 0.05F; };
    add("top-k 40, top-p 0.95, min-p 0.05, T 0.8", 0.8F, bar);
    add("the same, repeat penalty 1.1", 0.8F, [&](auto & p) { bar(p), p.repeat_penalty = 1.1F; });
    add("min-p 0.05, T 0.8", 0.8F, [](auto & p) { p.min_p = 0.05F; });
    add("top-p 0.95, T 0.8", 0.8F, [](auto & p) { p.top_p = 0.95F; });
    add("T 0.8", 0.8F, [](auto &) {});
    return result;
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: sampling_times VOCABULARY.gguf ROUNDS\n");
        return 2;
    }
    const Model              model  = load_vocabulary(argv[1]);
    const llama_vocab *      vocab  = llama_model_get_vocab(model.get());
    const int32_t            n      = llama_vocab_n_tokens(vocab);
    const std::vector<float> rows   = make_rows(static_cast<size_t>(n));
    const auto               at     = [&](int32_t row) { return rows.data() + static_cast<size_t>(row * n); };
    volatile int32_t         chosen = 0;  // keeps the work from being left out
    for (const auto & [name, params] : settings()) {
        const std::unique_ptr<pd2::Sampler> sampler = pd2::make_sampler(vocab, params, kContextSize);
        Llama                               llama(n, params);
        for (int32_t token = 0; token < 100; ++token) {  // something to penalize
            sampler->read(token * 7);
            llama.accept(token * 7);
        }
        pd2::Random         random(1);
        std::vector<double> ours, theirs;
        const auto          timed = [&](std::vector<double> & times, auto work) {
            const auto start = std::chrono::steady_clock::now();
            chosen           = work();
            times.push_back(
                         std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
        };
        for (int round = 0; round < std::atoi(argv[2]); ++round) {
            for (int32_t row = 0; row < kRows; ++row) {
                timed(ours, [&] {
                    const std::vector<pd2::Proposal> no_draft;
                    pd2::Judge                       judge(no_draft, random);
                    judge.see(0, sampler->distribution(at(row)));
                    return judge.draw_next();
                });
            }
            for (int32_t row = 0; row < kRows; ++row) {
                timed(theirs, [&] { return llama.sample(at(row)); });
            }
        }
        std::printf("%s\t%.4f\t%.4f\n", name, median(ours), median(theirs));
        std::fflush(stdout);
    }
    return 0;
}
