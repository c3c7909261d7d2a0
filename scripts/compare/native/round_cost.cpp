// Times llama.cpp's own DFlash drafter round by round, as its server drives it, and counts the nodes of its graphs.
//
//     round_cost IDS_FILE ROUNDS [--count] OPTIONS...
//
// IDS_FILE holds the prompt's token ids, OPTIONS are llama-server's (-m, -md, --spec-type, --spec-draft-n-max, -c, -t,
// ...). Prints JSON: milliseconds of every round's parts. "inject" writes the features of what the last round decoded
// into the drafter's cache, "draft" computes the block and walks the lattice, "verify" is the target's decode. With
// --count: what each part of the last round computed instead, in nodes of its graphs; looking slows them down.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "arg.h"
#include "common.h"
#include "ggml.h"
#include "llama.h"
#include "log.h"
#include "speculative.h"

namespace {

[[noreturn]] void fail(const char * what) {
    std::fprintf(stderr, "round_cost: %s\n", what);
    std::exit(1);
}

// Nodes that compute something; views, and what only renames a tensor, do not.
struct NodeCount {
    int nodes = 0;

    static bool see(ggml_tensor * tensor, bool ask, void * counter) {
        switch (tensor->op) {
            case GGML_OP_NONE:
            case GGML_OP_VIEW:
            case GGML_OP_RESHAPE:
            case GGML_OP_PERMUTE:
            case GGML_OP_TRANSPOSE:
                break;
            default:
                static_cast<NodeCount *>(counter)->nodes += ask ? 1 : 0;
        }
        return !ask;  // asked: no need to see the values; shown them nonetheless: go on
    }
};

struct Part {
    std::vector<double> ms;
    int                 nodes = 0;  // of the last time
};

template <typename Work>
void take(Part & part, NodeCount & counter, Work work) {
    counter.nodes       = 0;
    const int64_t start = ggml_time_us();
    work();
    part.ms.push_back(static_cast<double>(ggml_time_us() - start) / 1000.0);
    part.nodes = counter.nodes;
}

void print(const char * name, const Part & part, bool count) {
    if (count) {
        std::printf("\"%s_nodes\":%d", name, part.nodes);
        return;
    }
    std::printf("\"%s_ms\":[", name);
    for (size_t i = 0; i < part.ms.size(); ++i) {
        std::printf("%s%.4f", i ? "," : "", part.ms[i]);
    }
    std::printf("]");
}

llama_tokens read_ids(const char * path) {
    std::ifstream file(path);
    llama_tokens  ids;
    for (llama_token id; file >> id;) {
        ids.push_back(id);
    }
    if (ids.size() < 2) {
        fail("IDS_FILE holds no prompt");
    }
    return ids;
}

llama_token best(llama_context * context, int32_t row) {
    const float * logits  = llama_get_logits_ith(context, row);
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
    return static_cast<llama_token>(std::max_element(logits, logits + n_vocab) - logits);
}

void decode(llama_context * context, common_batch & batch) {
    if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
        fail("the target's decode failed");
    }
}

void inject(common_speculative * drafter, const common_batch & batch) {
    if (!common_speculative_process(drafter, batch)) {
        fail("the drafter could not take the features");
    }
}

struct Timed {
    Part inject, draft, verify;
    int  accepted = 0;
};

class Loop {
  public:
    Loop(common_params & params, llama_context * target, llama_context * drafter)
        : target_(target),
          drafter_(drafter),
          batch_(target),
          speculative_(common_speculative_init(params.speculative, 1)) {
        if (!speculative_) {
            fail("no drafter: give --spec-type draft-dflash and -md HEAD");
        }
    }

    void prefill(const llama_tokens & ids) {
        const size_t n_batch = llama_n_batch(target_);
        for (size_t start = 0; start < ids.size(); start += n_batch) {
            const size_t end = std::min(ids.size(), start + n_batch);
            batch_.clear();
            for (size_t i = start; i < end; ++i) {
                batch_.add(ids[i], static_cast<llama_pos>(i), 0, i + 1 == ids.size());
            }
            decode(target_, batch_);
            inject(speculative_.get(), batch_);
        }
        tokens_ = ids;
        anchor_ = best(target_, -1);
        common_speculative_begin(speculative_.get(), 0, tokens_);
    }

    void round(Timed & timed, NodeCount & counter) {
        const auto   past = static_cast<llama_pos>(tokens_.size());
        llama_tokens draft;
        take(timed.draft, counter, [&] {
            auto & request   = common_speculative_get_draft_params(speculative_.get(), 0);
            request.drafting = true;
            request.n_max    = -1;
            request.pos0     = past;
            request.id_last  = anchor_;
            request.prompt   = &tokens_;
            request.result   = &draft;
            common_speculative_draft(speculative_.get());
            llama_memory_seq_rm(llama_get_memory(drafter_), 0, past, -1);
        });

        batch_.clear();
        batch_.add(anchor_, past, 0, true);
        for (size_t i = 0; i < draft.size(); ++i) {
            batch_.add(draft[i], past + 1 + static_cast<llama_pos>(i), 0, true);
        }
        take(timed.verify, counter, [&] {
            decode(target_, batch_);
            llama_synchronize(target_);
        });
        take(timed.inject, counter, [&] {
            inject(speculative_.get(), batch_);
            llama_synchronize(drafter_);
        });

        const auto  n_drafted = static_cast<int32_t>(draft.size());
        int32_t     accepted  = 0;
        llama_token chosen    = best(target_, 0);
        tokens_.push_back(anchor_);
        for (; accepted < n_drafted && draft[static_cast<size_t>(accepted)] == chosen; ++accepted) {
            tokens_.push_back(chosen);
            chosen = best(target_, accepted + 1);
        }
        anchor_ = chosen;
        timed.accepted += accepted;
        common_speculative_accept(speculative_.get(), 0, static_cast<uint16_t>(accepted));
        const auto kept = static_cast<llama_pos>(tokens_.size());
        if (!llama_memory_seq_rm(llama_get_memory(target_), 0, kept, -1)) {
            fail("this target cannot take tokens back: give one without recurrent state");
        }
        llama_memory_seq_rm(llama_get_memory(drafter_), 0, kept, -1);
    }

  private:
    llama_context *        target_;
    llama_context *        drafter_;
    common_batch           batch_;
    common_speculative_ptr speculative_;
    llama_tokens           tokens_;  // in the target's cache
    llama_token            anchor_ = 0;
};

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 4) {
        fail("usage: round_cost IDS_FILE ROUNDS [--count] OPTIONS...");
    }
    const llama_tokens  ids     = read_ids(argv[1]);
    const int           rounds  = std::atoi(argv[2]);
    const bool          count   = std::strcmp(argv[3], "--count") == 0;
    std::vector<char *> options = {argv[0]};
    options.insert(options.end(), argv + (count ? 4 : 3), argv + argc);

    common_init();
    common_log_set_verbosity_thold(LOG_LEVEL_ERROR);
    common_params params;
    if (!common_params_parse(static_cast<int>(options.size()), options.data(), params, LLAMA_EXAMPLE_SPECULATIVE)) {
        fail("llama.cpp does not take these options");
    }
    const auto limits =
        common_speculative_get_output_limits(params.n_batch, 1, common_speculative_n_max(&params.speculative));
    params.n_outputs_max         = limits.total;
    params.n_outputs_max_per_seq = limits.per_seq;

    NodeCount counter;
    if (count) {
        params.cb_eval           = NodeCount::see;
        params.cb_eval_user_data = &counter;
    }
    llama_backend_init();
    const auto target = common_init_from_params(params);
    if (!target || !target->context()) {
        fail("the target does not load");
    }
    common_params drafter_params = common_base_params_to_speculative(params);
    const auto    drafter = common_speculative_init_from_params(drafter_params, target->model(), target->context());
    if (!drafter->context()) {
        fail("the head does not load");
    }
    params.speculative.draft.ctx_tgt = target->context();
    params.speculative.draft.ctx_dft = drafter->context();

    Timed timed;
    {
        Loop loop(params, target->context(), drafter->context());
        loop.prefill(ids);
        for (int i = 0; i < rounds; ++i) {
            loop.round(timed, counter);
        }
    }
    std::printf("{\"rounds\":%d,\"accepted\":%d,", rounds, timed.accepted);
    print("inject", timed.inject, count);
    std::printf(",");
    print("draft", timed.draft, count);
    std::printf(",");
    print("verify", timed.verify, count);
    std::printf("}\n");
    return 0;
}
