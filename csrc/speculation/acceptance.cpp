#include "acceptance.h"

#include <algorithm>
#include <vector>

namespace pd2 {

namespace {

int32_t draw(const std::vector<int32_t> & tokens, const std::vector<double> & weights, double total, Random & random) {
    double  left = random.uniform() * total;
    int32_t last = -1;
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (weights[i] > 0) {
            last = tokens[i];
            if (left < weights[i]) {
                break;
            }
            left -= weights[i];  // what rounding leaves at the end goes to the last token
        }
    }
    return last;
}

double q_of(const Proposal & proposal, int32_t token) {
    if (!proposal.q) {
        return token == proposal.token ? 1 : 0;
    }
    const int32_t * end   = proposal.candidates + proposal.k;
    const int32_t * found = std::find(proposal.candidates, end, token);
    return found == end ? 0 : static_cast<double>(proposal.q[found - proposal.candidates]);
}

}  // namespace

int32_t draw(const Distribution & p, Random & random) {
    return draw(p.tokens, p.probabilities, 1, random);
}

int32_t judge(const Distribution & p, const Proposal & proposal, Random & random) {
    if (random.uniform() * q_of(proposal, proposal.token) < p.of(proposal.token)) {
        return proposal.token;
    }
    std::vector<double> residual(p.tokens.size());
    double              total = 0;
    for (size_t i = 0; i < residual.size(); ++i) {
        residual[i] = std::max(p.probabilities[i] - q_of(proposal, p.tokens[i]), 0.0);
        total += residual[i];
    }
    // p = q up to rounding: the rejection was a rounding's, and p itself is the answer.
    return total > 0 ? draw(p.tokens, residual, total, random) : draw(p, random);
}

}  // namespace pd2
