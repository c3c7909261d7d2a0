#include "fork.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "error.h"
#include "ggml-backend.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#if defined(__linux__)
// Weak: a build without OpenMP lacks it, and so does the libgomp of a GCC before 9.
extern "C" __attribute__((weak)) int omp_pause_resource_all(int kind);
#endif

namespace pd2 {

namespace {

std::atomic<bool> forked{false};

// libgomp keeps idle threads for the thread that computed with them. A child has the forking thread only, and its first
// computation would wait for the others for ever. Ended before the fork, they are made anew where they are needed.
[[maybe_unused]] void before_fork() {
#if defined(__linux__)
    constexpr int kSoft = 1;  // omp_pause_soft
    if (omp_pause_resource_all) {
        omp_pause_resource_all(kSoft);
    }
#endif
}

// By the name of its back end: ggml asks the driver for a device's type, which ends a process that may not.
bool survives_fork(ggml_backend_dev_t device) {
    const char * name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
    return std::strcmp(name, "CPU") == 0 || std::strcmp(name, "BLAS") == 0;
}

}  // namespace

void fork_install() {
#if !defined(_WIN32)
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(before_fork, nullptr, [] { forked = true; }); });
#endif
}

void fork_check() {
    for (size_t i = 0; forked && i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (!survives_fork(device)) {
            fail(PD2_ERROR_BACKEND,
                 "%s was opened before this process was forked, and cannot be used after it: start the process with "
                 "multiprocessing's 'spawn' method, or use pydflash2 only after the fork",
                 ggml_backend_dev_name(device));
        }
    }
}

}  // namespace pd2
