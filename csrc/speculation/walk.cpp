#include "walk.h"

#include <algorithm>
#include <cmath>

namespace pd2 {

namespace {

// softmax(scores / temperature) over the allowed of k candidates; all zero where none is.
std::vector<float> softmax(const float * scores, int32_t k, float temperature, const std::vector<bool> & allowed) {
    std::vector<float> weights(static_cast<size_t>(k), 0.0f);
    double             top = -HUGE_VAL, total = 0;
    for (int32_t b = 0; b < k; ++b) {
        if (allowed.empty() || allowed[static_cast<size_t>(b)]) {
            top = std::max(top, static_cast<double>(scores[b]));
        }
    }
    for (int32_t b = 0; b < k; ++b) {
        if (allowed.empty() || allowed[static_cast<size_t>(b)]) {
            const double weight             = std::exp((static_cast<double>(scores[b]) - top) / temperature);
            weights[static_cast<size_t>(b)] = static_cast<float>(weight);
            total += weight;
        }
    }
    for (float & weight : weights) {
        weight = total > 0 ? static_cast<float>(weight / total) : 0;
    }
    return weights;
}

// next[t, a]: the candidate at t that makes the most of what follows, after candidate a at t - 1. With P(b | a) the
// selector's softmax, a path's expected accepted length is P(b1 | anchor) (1 + P(b2 | b1) (1 + ...)).
std::vector<int32_t> longest_expected(const Lattice & lattice) {
    const int32_t        k = lattice.k;
    std::vector<int32_t> next(static_cast<size_t>(lattice.n) * k);  // [n, k]
    std::vector<double>  value(static_cast<size_t>(k), 0.0);        // of what follows candidate b at t
    for (int32_t t = lattice.n - 1; t >= 0; --t) {
        std::vector<double> before(static_cast<size_t>(k));
        for (int32_t a = 0; a < k; ++a) {
            const size_t             row  = static_cast<size_t>(t) * k + a;
            const std::vector<float> p    = softmax(lattice.scores.data() + row * k, k, 1, {});
            double                   best = -1;
            for (int32_t b = 0; b < k; ++b) {
                const double expected =
                    static_cast<double>(p[static_cast<size_t>(b)]) * (1 + value[static_cast<size_t>(b)]);
                if (expected > best) {
                    best      = expected;
                    next[row] = b;
                }
            }
            before[static_cast<size_t>(a)] = best;
        }
        value = std::move(before);
    }
    return next;
}

}  // namespace

Path walk(const Lattice & lattice, const WalkParams & params, Random & random, Constraint * constraint) {
    const int32_t        k       = lattice.k;
    const bool           sampled = params.temperature > 0;
    std::vector<int32_t> planned;  // [n, k]; a constraint's state depends on the path, so it cannot be planned with one
    if (!sampled && !constraint && params.kind == PD2_WALK_EXPECTED_LENGTH) {
        planned = longest_expected(lattice);
    }
    Path    path;
    double  probability = 1;  // of the path up to here
    int32_t previous    = 0;
    for (int32_t t = 0; t < lattice.n; ++t) {
        const size_t             row        = static_cast<size_t>(t) * k + previous;
        const int32_t *          candidates = lattice.candidates.data() + static_cast<size_t>(t) * k;
        const std::vector<bool>  allowed    = constraint ? constraint->allowed(candidates, k) : std::vector<bool>();
        const std::vector<float> q =
            softmax(lattice.scores.data() + row * k, k, sampled ? params.temperature : 1, allowed);
        const auto likeliest = static_cast<int32_t>(std::max_element(q.begin(), q.end()) - q.begin());

        // Decided before the token is drawn. A draft that were cut because of the token it drew would hand the target a
        // choice of tokens that q does not describe, and the text would no longer follow the target's distribution.
        const auto most = static_cast<double>(q[static_cast<size_t>(likeliest)]);
        if (most == 0 || probability * most < static_cast<double>(params.min_probability) ||
            (params.more && !params.more(path.confidences, q[static_cast<size_t>(likeliest)]))) {
            break;
        }
        const int32_t chosen = sampled           ? static_cast<int32_t>(draw_index(q, 1, random))
                               : planned.empty() ? likeliest
                                                 : planned[row];
        path.tokens.push_back(candidates[chosen]);
        path.probabilities.push_back(q[static_cast<size_t>(chosen)]);
        path.confidences.push_back(q[static_cast<size_t>(likeliest)]);
        if (sampled) {
            path.proposal.insert(path.proposal.end(), q.begin(), q.end());
        }
        probability *= static_cast<double>(q[static_cast<size_t>(chosen)]);
        if (constraint) {
            constraint->accept(candidates[chosen]);
        }
        previous = chosen;
    }
    return path;
}

}  // namespace pd2
