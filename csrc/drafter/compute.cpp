#include "compute.h"

#include "error.h"
#include "ggml-alloc.h"

namespace pd2 {
namespace {

constexpr int32_t kFewRows = 32;

}  // namespace

Compute::Compute(const std::vector<ggml_backend_dev_t> & devices, int32_t n_threads) {
    for (ggml_backend_dev_t device : devices) {
        BackendPtr backend(ggml_backend_dev_init(device, nullptr));
        if (!backend) {
            fail(PD2_ERROR_BACKEND, "the device %s could not be opened for the drafter; try draft_device=\"cpu\"",
                 ggml_backend_dev_name(device));
        }
        ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
        auto               set = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
        if (set) {
            set(backend.get(), n_threads);
        }
        backends_.push_back(std::move(backend));
        set_reference_ =
            reinterpret_cast<SetReference>(ggml_backend_reg_get_proc_address(reg, "ggml_backend_cpu_set_use_ref"));
    }
}

bool Compute::reads(const ggml_tensor * tensor) const {
    return !tensor || (tensor->buffer && ggml_backend_supports_buft(backends_.front().get(),
                                                                    ggml_backend_buffer_get_type(tensor->buffer)));
}

ggml_backend_dev_t Compute::device_of(ggml_tensor * node, ggml_backend_sched * sched) const {
    return ggml_backend_get_device(sched ? ggml_backend_sched_get_tensor_backend(sched, node)
                                         : backends_.front().get());
}

void Compute::use_one_buffer() {
    allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backends_.front().get())));
}

bool Compute::allocate(ggml_cgraph * graph, SchedPtr & sched) {
    bool       done   = false;
    const auto before = bytes();
    if (allocator_) {
        done = ggml_gallocr_alloc_graph(allocator_.get(), graph);
    } else {
        std::vector<ggml_backend_t> backends;
        for (const BackendPtr & backend : backends_) {
            backends.push_back(backend.get());
        }
        sched.reset(ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()),
                                           static_cast<size_t>(ggml_graph_size(graph)), /*parallel =*/false,
                                           /*op_offload =*/false));
        done = sched && ggml_backend_sched_alloc_graph(sched.get(), graph);
    }
    if (!done) {
        fail(PD2_ERROR_MEMORY, "no memory for the drafter's computation; use a smaller batch_size or context_size");
    }
    return bytes() != before;
}

void Compute::run(ggml_cgraph * graph, ggml_backend_sched * sched, int32_t n_rows) {
    if (set_reference_) {
        set_reference_(backends_.back().get(), n_rows <= kFewRows);
    }
    const ggml_status status = sched ? ggml_backend_sched_graph_compute(sched, graph)
                                     : ggml_backend_graph_compute(backends_.front().get(), graph);
    if (status != GGML_STATUS_SUCCESS) {
        fail(PD2_ERROR_NATIVE, "the drafter's computation failed (ggml: %s); report this with the log",
             ggml_status_to_string(status));
    }
}

uint64_t Compute::bytes() const {
    return allocator_ ? ggml_gallocr_get_buffer_size(allocator_.get(), 0) : 0;
}

}  // namespace pd2
