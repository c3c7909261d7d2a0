#include "walk.h"

#include <algorithm>
#include <cmath>

namespace pd2 {

Path walk_greedily(const Lattice & lattice) {
    Path          path;
    const int32_t k        = lattice.k;
    int32_t       previous = 0;
    for (int32_t t = 0; t < lattice.n; ++t) {
        const float * scores = lattice.scores.data() + (static_cast<size_t>(t) * k + previous) * k;
        const auto    best   = static_cast<int32_t>(std::max_element(scores, scores + k) - scores);
        double        total  = 0;
        for (int32_t b = 0; b < k; ++b) {
            total += std::exp(static_cast<double>(scores[b]) - static_cast<double>(scores[best]));
        }
        path.tokens.push_back(lattice.candidates[static_cast<size_t>(t) * k + best]);
        path.probabilities.push_back(static_cast<float>(1 / total));
        previous = best;
    }
    return path;
}

}  // namespace pd2
