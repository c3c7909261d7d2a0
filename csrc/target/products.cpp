#include "products.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "products_kernel.h"

namespace pd2 {
namespace {

bool wanted() {
    const char * kernels = std::getenv("PYDFLASH2_CPU_KERNELS");
    return !kernels || std::strcmp(kernels, "off") != 0;
}

#ifdef PD2_X86_PRODUCTS
bool runs_here() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

const ProductKernel * find(ggml_type weights, ggml_type rows) {
    static const bool usable = wanted() && runs_here();
    if (!usable) {
        return nullptr;
    }
    for (const ProductKernel * kernel : {&q8_0_product}) {
        if (kernel->weights == weights && kernel->rows == rows) {
            return kernel;
        }
    }
    return nullptr;
}
#else
const ProductKernel * find(ggml_type, ggml_type) {
    return nullptr;
}
#endif

constexpr std::align_val_t panel_alignment{64};

struct Free {
    void operator()(void * memory) const { ::operator delete(memory, panel_alignment); }
};

// Memory of this thread that grows to the largest panel and stays.
void * panel_memory(size_t bytes) {
    thread_local std::unique_ptr<void, Free> memory;
    thread_local size_t                      size = 0;
    if (size < bytes) {
        memory.reset(::operator new(bytes, panel_alignment));
        size = bytes;
    }
    return memory.get();
}

}  // namespace

bool multiply_rows(int ith, int nth, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b,
                   int64_t ldb, float * c, int64_t ldc, ggml_type type_a, ggml_type type_b) {
    const ProductKernel * kernel = find(type_a, type_b);
    if (!kernel) {
        return false;
    }
    constexpr int64_t together = 8;  // weight rows whose results share a cache line stay with one thread
    const int64_t     eights   = (m + together - 1) / together;
    const int64_t     begin    = eights * ith / nth * together;
    const int64_t     end      = std::min(m, eights * (ith + 1) / nth * together);
    if (begin >= end || n == 0) {
        return true;
    }
    const char *  weights = static_cast<const char *>(a) + begin * lda * ggml_type_size(type_a);
    const int64_t panels  = (n + most_rows - 1) / most_rows;
    void *        panel   = panel_memory(kernel->panel_bytes * k);
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t row  = n * i / panels;  // nine rows as five and four, not as eight and one
        const int     rows = static_cast<int>(n * (i + 1) / panels - row);
        kernel->prepare(static_cast<const char *>(b) + row * ldb * ggml_type_size(type_b), ldb, rows, k, panel);
        kernel->multiply(weights, lda, end - begin, panel, rows, k, c + row * ldc + begin, ldc);
    }
    return true;
}

}  // namespace pd2
