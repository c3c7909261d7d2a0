#include "invariant.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <vector>

#include "ggml-cpu-impl.h"
#include "products.h"

namespace {

std::shared_mutex                    mutex;
std::vector<const ggml_threadpool *> pools;

#ifdef PD2_WRAP_LLAMAFILE
bool is_invariant(const ggml_threadpool * pool) {
    const std::shared_lock lock(mutex);
    return std::find(pools.begin(), pools.end(), pool) != pools.end();
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
    if (type_c == GGML_TYPE_F32 &&
        pd2::multiply_rows(params->ith, params->nth, m, n, k, a, lda, b, ldb, static_cast<float *>(c), ldc,
                           static_cast<ggml_type>(type_a), static_cast<ggml_type>(type_b))) {
        return true;
    }
    return !is_invariant(params->threadpool) &&
           __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, type_a, type_b, type_c);
}
}
#endif

namespace pd2 {

InvariantThreads::InvariantThreads(int n_threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    pool_                         = ggml_threadpool_new(&params);
    if (!pool_) {
        throw std::bad_alloc();
    }
    const std::unique_lock lock(mutex);
    pools.push_back(pool_);
}

InvariantThreads::~InvariantThreads() {
    {
        const std::unique_lock lock(mutex);
        pools.erase(std::find(pools.begin(), pools.end(), pool_));
    }
    ggml_threadpool_free(pool_);
}

}  // namespace pd2
