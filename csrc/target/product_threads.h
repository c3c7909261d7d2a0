// How products of the CPU back end are computed, context by context: each row alike however many it is decoded with, or many rows
// as fast as can be.
#pragma once

#include "ggml-cpu.h"

namespace pd2 {

enum class Products {
    alike,  // llamafile's kernels, which take over from ggml's own at two rows and add up in another order, are refused
    fast,   // those for many rows come first
};

// Threads for a context that bring this wish to all its products. Outlives the context.
class ProductThreads {
  public:
    ProductThreads(int n_threads, Products wanted);
    ProductThreads(const ProductThreads &)             = delete;
    ProductThreads & operator=(const ProductThreads &) = delete;
    ~ProductThreads();

    ggml_threadpool_t get() const { return pool_; }

  private:
    ggml_threadpool_t pool_;
};

}  // namespace pd2
