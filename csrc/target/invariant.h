// Products of the CPU back end that treat a row alike however many it is decoded with.
#pragma once

#include "ggml-cpu.h"

namespace pd2 {

// Threads for a context whose products must not change with the number of rows: llamafile's kernels, which take over from ggml's own
// at two rows and add up in another order, refuse work that these threads bring. Outlives the context.
class InvariantThreads {
  public:
    explicit InvariantThreads(int n_threads);
    InvariantThreads(const InvariantThreads &)             = delete;
    InvariantThreads & operator=(const InvariantThreads &) = delete;
    ~InvariantThreads();

    ggml_threadpool_t get() const { return pool_; }

  private:
    ggml_threadpool_t pool_;
};

}  // namespace pd2
