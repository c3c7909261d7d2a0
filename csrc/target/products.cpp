#include "products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "ggml-cpu.h"
#include "products_kernel.h"

namespace pd2 {
namespace {

constexpr std::align_val_t memory_alignment{64};

struct Free {
    void operator()(void * memory) const { ::operator delete(memory, memory_alignment); }
};

void multiply(const ProductKernel & kernel, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda,
              const void * b, int64_t ldb, float * c, int64_t ldc) {
    const int64_t panels = (n + most_rows - 1) / most_rows;
    void *        panel  = product_memory(kernel.panel_bytes * k);
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t row  = n * i / panels;  // nine rows as five and four, not as eight and one
        const int     rows = static_cast<int>(n * (i + 1) / panels - row);
        kernel.prepare(static_cast<const char *>(b) + row * ldb * ggml_type_size(kernel.rows), ldb, rows, k, panel);
        kernel.multiply(a, lda, m, panel, rows, k, c + row * ldc, ldc);
    }
}

#ifdef PD2_X86_PRODUCTS
std::vector<char> example(ggml_type type, int64_t rows, int64_t k, double step) {
    std::vector<float> values(rows * k);
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(std::sin(step * static_cast<double>(i)));
    }
    std::vector<char> quantised(rows * ggml_row_size(type, k));
    ggml_get_type_traits_cpu(type)->from_float(values.data(), quantised.data(), rows * k);
    return quantised;
}

// ggml's dot product has an order of sums for every processor it may be compiled for, and compilers fuse its multiplications
// and additions as they like. Where its order is not ours, a row would change between the two.
bool agrees(const ProductKernel & kernel) {
    constexpr int            k = 1024, m = 5, n = 7;
    const std::vector<char>  a    = example(kernel.weights, m, k, 0.37);
    const std::vector<char>  b    = example(kernel.rows, n, k, 0.73);
    const ggml_vec_dot_t     dot  = ggml_get_type_traits_cpu(kernel.weights)->vec_dot;
    const size_t             size = ggml_row_size(kernel.weights, k), row_size = ggml_row_size(kernel.rows, k);
    std::array<float, n * m> c{};
    const int64_t            blocks = k / ggml_blck_size(kernel.weights);
    multiply(kernel, m, n, blocks, a.data(), blocks, b.data(), blocks, c.data(), m);
    for (int i = 0; i < n * m; ++i) {
        float alone = 0;
        dot(k, &alone, 0, a.data() + i % m * size, 0, b.data() + i / m * row_size, 0, 1);
        if (std::memcmp(&alone, &c[i], sizeof alone) != 0) {
            return false;
        }
    }
    return true;
}

std::vector<const ProductKernel *> usable() {
    std::vector<const ProductKernel *> kernels;
    if (products_run_here()) {
        for (const ProductKernel * kernel :
             {&q8_0_product, &q5_0_product, &q6_k_product, &q5_k_product, &q4_k_product}) {
            if (agrees(*kernel)) {
                kernels.push_back(kernel);
            }
        }
    }
    return kernels;
}
#else
std::vector<const ProductKernel *> usable() {
    return {};
}
#endif

const ProductKernel * find(ggml_type weights, ggml_type rows) {
    static const std::vector<const ProductKernel *> kernels = usable();
    for (const ProductKernel * kernel : kernels) {
        if (kernel->weights == weights && kernel->rows == rows) {
            return kernel;
        }
    }
    return nullptr;
}

}  // namespace

// It grows to the largest that was asked for, and stays.
void * product_memory(size_t bytes) {
    thread_local std::unique_ptr<void, Free> memory;
    thread_local size_t                      size = 0;
    if (size < bytes) {
        memory.reset(::operator new(bytes, memory_alignment));
        size = bytes;
    }
    return memory.get();
}

#ifdef PD2_X86_PRODUCTS
bool products_run_here() {
    static const bool yes = [] {
        const char * kernels = std::getenv("PYDFLASH2_CPU_KERNELS");
        return !(kernels && std::strcmp(kernels, "off") == 0) && __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    }();
    return yes;
}
#endif

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
    if (begin < end) {
        const char * weights = static_cast<const char *>(a) + begin * lda * ggml_type_size(type_a);
        multiply(*kernel, end - begin, n, k, weights, lda, b, ldb, c + begin, ldc);
    }
    return true;
}

}  // namespace pd2
