// Where the drafter's graphs get their memory and run. Where one device holds everything they read, all graphs share one buffer, as
// just one of them runs at a time: nothing is planned or allocated again when they take turns. Else ggml's scheduler copies between
// the devices, one scheduler a graph.
#pragma once

#include <memory>
#include <vector>

#include "weights.h"

namespace pd2 {

struct SchedFree {
    void operator()(ggml_backend_sched * sched) const { ggml_backend_sched_free(sched); }
};

struct GallocFree {
    void operator()(ggml_gallocr * allocator) const { ggml_gallocr_free(allocator); }
};

struct BackendFree {
    void operator()(ggml_backend * backend) const { ggml_backend_free(backend); }
};

using SchedPtr   = std::unique_ptr<ggml_backend_sched, SchedFree>;
using GallocPtr  = std::unique_ptr<ggml_gallocr, GallocFree>;
using BackendPtr = std::unique_ptr<ggml_backend, BackendFree>;

class Compute {
  public:
    // Preferred device first, a CPU last.
    Compute(const std::vector<ggml_backend_dev_t> & devices, int32_t n_threads);

    // Whether the first device reads a tensor where it lies.
    bool reads(const ggml_tensor * tensor) const;

    // Where an operation of an allocated graph runs. sched: as allocate() made it, null with one buffer.
    ggml_backend_dev_t device_of(ggml_tensor * node, ggml_backend_sched * sched) const;

    // Before the first allocate(): one device will do.
    void use_one_buffer();

    // Throws when memory is short. The scheduler, if one is made, belongs to the graph. True: the shared buffer had to grow,
    // and graphs that were allocated before must not run again.
    bool allocate(ggml_cgraph * graph, SchedPtr & sched);

    // n_rows: of its products. A CPU's tiled products take over at 8 rows and are made for prompts: for few rows they are slower
    // than what comes after them.
    void run(ggml_cgraph * graph, ggml_backend_sched * sched, int32_t n_rows);

    uint64_t bytes() const;  // of the shared buffer

  private:
    using SetReference = void (*)(ggml_backend_t, bool);

    std::vector<BackendPtr> backends_;
    SetReference            set_reference_ = nullptr;  // of the CPU, the last back end
    GallocPtr               allocator_;                // null: a scheduler a graph
};

}  // namespace pd2
