#include "row_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "error.h"

namespace pd2 {

RowCheck::RowCheck(Target & target, int32_t max_rows, int32_t depth, int32_t probe)
    : target_(target),
      max_rows_(max_rows),
      depth_(depth),
      n_vocab_(target.info().n_vocab),
      recurrent_(target.info().is_recurrent) {
    const int32_t context_size = target.info().context_size;
    if (max_rows < 2 || max_rows > target.batch_size()) {
        fail(PD2_ERROR_ARGUMENT, "%d rows cannot be checked; give 2 to %d, the batch size", max_rows,
             target.batch_size());
    }
    if (depth < 1 || depth > context_size - max_rows) {
        fail(PD2_ERROR_ARGUMENT,
             "%d rows after %d tokens cannot be checked, the context holds %d; give a depth of 1 to %d", max_rows,
             depth, context_size, context_size - max_rows);
    }
    std::mt19937 random(static_cast<uint32_t>(probe));
    for (int32_t i = 0; i < depth + max_rows; ++i) {
        tokens_.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(n_vocab_)));
    }
    reference_.resize(static_cast<size_t>(max_rows) * n_vocab_);
    differences_.resize(max_rows);
    target_.clear();
}

bool RowCheck::step() {
    const int32_t position = target_.end();
    if (position < depth_) {
        const int32_t piece = rows_ == 1 ? std::max(1, depth_ / 3) : target_.batch_size();
        decode(std::min({piece, target_.batch_size(), depth_ - position}), Target::Logits::none);
        return true;
    }
    if (rows_ == 0) {
        decode(1, Target::Logits::all);
        const int32_t row = position - depth_;
        std::copy_n(target_.logits(0), n_vocab_, reference_.begin() + static_cast<ptrdiff_t>(row) * n_vocab_);
        if (row + 1 == max_rows_) {
            return next();
        }
        return true;
    }
    if (rolled_back_) {
        decode(1, Target::Logits::all);
        compare(1, 1);
        return next();
    }
    decode(rows_, Target::Logits::all);
    compare(rows_, 0);
    // What a recurrent target goes back to is a state of its own making: the row after it is compared too.
    rolled_back_ = recurrent_ && rows_ > 1 && target_.truncate(depth_ + 1);
    return rolled_back_ || next();
}

// Plain texts are decoded without features, drafted ones with them.
void RowCheck::decode(int32_t n, Target::Logits logits) {
    const int32_t position = target_.end();
    target_.decode(tokens_.data() + position, n, position, logits, rows_ > 0);
}

// The last decode's rows with the reference's from row `reference` on.
void RowCheck::compare(int32_t rows, int32_t reference) {
    float & largest = differences_[rows_ - 1];
    for (int32_t row = 0; row < rows; ++row) {
        const float * given    = target_.logits(row);
        const float * expected = reference_.data() + static_cast<size_t>(reference + row) * n_vocab_;
        if (std::memcmp(given, expected, sizeof(float) * n_vocab_) == 0) {
            continue;
        }
        largest = std::max(largest, std::numeric_limits<float>::min());  // 0 and -0 are unlike
        for (int32_t i = 0; i < n_vocab_; ++i) {
            if (given[i] != expected[i]) {
                const float difference = std::fabs(given[i] - expected[i]);
                largest =
                    std::isnan(difference) ? std::numeric_limits<float>::infinity() : std::max(largest, difference);
            }
        }
    }
}

// To the next number of rows: 2 .. max_rows, then 1, whose text before is decoded anew. False after that.
bool RowCheck::next() {
    rolled_back_    = false;
    const bool done = rows_ == 1;
    rows_           = rows_ == 0 ? 2 : rows_ == max_rows_ ? 1 : rows_ + 1;
    if (done || rows_ == 1 || !target_.truncate(depth_)) {
        target_.clear();
    }
    return !done;
}

}  // namespace pd2
