#ifdef PD2_WRAP_OPENMP  // ggml computes on GCC's libgomp

#include <sched.h>

#include <atomic>
#include <cstdint>

extern "C" {
// Weak: a build without OpenMP lacks them, and calls none of what follows.
__attribute__((weak)) int  omp_get_num_threads();
__attribute__((weak)) void __real_GOMP_barrier();
__attribute__((weak)) void __real_GOMP_parallel(void (*body)(void *), void * data, unsigned n_threads, unsigned flags);

void __wrap_GOMP_barrier();
void __wrap_GOMP_parallel(void (*body)(void *), void * data, unsigned n_threads, unsigned flags);
}

namespace {

constexpr int32_t n_spins = 256;  // some microseconds: what threads that have a core each wait for one another

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");  // `yield` is over at once
#endif
}

// The threads of one parallel region.
class Team {
  public:
    Team(void (*body)(void *), void * data) : body_(body), data_(data) {}

    void run() {
        body_(data_);
        meet();  // here, so that libgomp's own barrier, at the region's end, finds everybody there
    }

    void meet() {
        const uint32_t round = round_.load(std::memory_order_relaxed);
        if (n_arrived_.fetch_add(1, std::memory_order_acq_rel) == omp_get_num_threads() - 1) {
            n_arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int32_t i = 0; round_.load(std::memory_order_acquire) == round;) {
            if (i < n_spins) {
                relax();
                ++i;
            } else {
                sched_yield();
            }
        }
    }

  private:
    void (*const body_)(void *);
    void * const          data_;
    std::atomic<int32_t>  n_arrived_{0};
    std::atomic<uint32_t> round_{0};  // how often all have met
};

thread_local Team * team = nullptr;  // of the region that this thread is in

void run(void * own) {
    Team * const outer = team;
    team               = static_cast<Team *>(own);
    team->run();
    team = outer;
}

}  // namespace

// The linker puts these in the place of libgomp's, for ggml too. libgomp's threads spin at a barrier for milliseconds before they sleep.
// Where another process keeps a core busy, two of a team come to share the other one, and the thread that is waited for runs when the
// scheduler takes the core from the one that spins: milliseconds at each of a token's some hundred barriers, or, where none spins, a
// sleep and a waking for each. Ours give the core away once they have waited longer than is usual.
void __wrap_GOMP_parallel(void (*body)(void *), void * data, unsigned n_threads, unsigned flags) {
    Team own(body, data);
    __real_GOMP_parallel(run, &own, n_threads, flags);
}

void __wrap_GOMP_barrier() {
    if (team) {
        team->meet();
    } else {
        __real_GOMP_barrier();
    }
}

#endif
