#include "pair.h"

#include "error.h"

namespace pd2 {

void check_pair(const HeadParams & head, const std::string & head_path, const pd2_target_info & target) {
    const char * path   = head_path.c_str();
    const char * advice = "use the head trained for this target";

    for (const int32_t tap : head.taps) {
        if (tap >= target.n_layer) {
            fail(PD2_ERROR_HEAD_MISMATCH, "%s: the head taps layer %d, the target has layers 0..%d; %s", path, tap,
                 target.n_layer - 1, advice);
        }
    }
    const auto n_taps = static_cast<int32_t>(head.taps.size());
    if (head.n_feature != n_taps * target.n_embd) {
        fail(PD2_ERROR_HEAD_MISMATCH,
             "%s: the head reads %d taps of hidden size %d, the target's hidden size is %d; %s", path, n_taps,
             head.n_feature / n_taps, target.n_embd, advice);
    }
    if ((!head.own_embedding || !head.own_output) && head.n_embd != target.n_embd) {
        fail(PD2_ERROR_HEAD_MISMATCH,
             "%s: the head's hidden size is %d, the embedding it would borrow from the target has %d; %s", path,
             head.n_embd, target.n_embd, advice);
    }
    // A borrowed output head proposes any of the target's ids: the codebooks may cover more, as padding, never fewer.
    // An own output head proposes any of its own ids, and the target must know them.
    if (head.n_vocab < target.n_vocab || (head.own_output && head.n_vocab != target.n_vocab)) {
        fail(PD2_ERROR_HEAD_MISMATCH, "%s: the head covers %d token ids, the target has %d; %s", path, head.n_vocab,
             target.n_vocab, advice);
    }
    if (head.mask_token >= target.n_vocab) {
        fail(PD2_ERROR_HEAD_MISMATCH, "%s: the head's mask token is %d, the target's token ids are 0..%d; %s", path,
             head.mask_token, target.n_vocab - 1, advice);
    }
}

}  // namespace pd2
