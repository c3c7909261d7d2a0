#include "product_threads.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "ggml-cpu-impl.h"
#include "products.h"
#include "products_many.h"

namespace {

using Pool = std::pair<const ggml_threadpool *, pd2::Products>;

std::shared_mutex mutex;
std::vector<Pool> pools;

#ifdef PD2_WRAP_LLAMAFILE
bool want(const ggml_threadpool * pool, pd2::Products products) {
    const std::shared_lock lock(mutex);
    return std::find(pools.begin(), pools.end(), Pool(pool, products)) != pools.end();
}
#endif

}  // namespace

#ifdef PD2_WRAP_LLAMAFILE
extern "C" {

bool __real_llamafile_sgemm(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a,
                            int64_t lda, const void * b, int64_t ldb, void * c, int64_t ldc, int type_a, int type_b,
                            int type_c);

// The linker puts this in the place of llamafile_sgemm, which ggml asks twice: with the rows as they are and, where that gives false,
// with the rows quantised as the weights' dot product wants them. False both times: that dot product follows, pair by pair.
bool __wrap_llamafile_sgemm(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a,
                            int64_t lda, const void * b, int64_t ldb, void * c, int64_t ldc, int type_a, int type_b,
                            int type_c) {
    const auto weights = static_cast<ggml_type>(type_a), rows = static_cast<ggml_type>(type_b);
    const auto ours = [&](auto multiply) {
        return type_c == GGML_TYPE_F32 &&
               multiply(params->ith, params->nth, m, n, k, a, lda, b, ldb, static_cast<float *>(c), ldc, weights, rows);
    };
    if (want(params->threadpool, pd2::Products::fast) && ours(pd2::multiply_many_rows)) {
        return true;
    }
    return ours(pd2::multiply_rows) ||
           (!want(params->threadpool, pd2::Products::alike) &&
            __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, type_a, type_b, type_c));
}
}
#endif

namespace pd2 {

ProductThreads::ProductThreads(int n_threads, Products wanted) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    pool_                         = ggml_threadpool_new(&params);
    if (!pool_) {
        throw std::bad_alloc();
    }
    const std::unique_lock lock(mutex);
    pools.emplace_back(pool_, wanted);
}

ProductThreads::~ProductThreads() {
    {
        const std::unique_lock lock(mutex);
        pools.erase(std::find_if(pools.begin(), pools.end(), [&](const Pool & pool) { return pool.first == pool_; }));
    }
    ggml_threadpool_free(pool_);
}

}  // namespace pd2
