// Independent pieces of work, spread over a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace pd2 {

// work(0) .. work(n - 1), in any order; all of them, and then the exception of the first that threw one.
template <typename Work>
void spread(int n_threads, size_t n, const Work & work) {
    std::vector<std::exception_ptr> failed(n);
    std::atomic<size_t>             next{0};
    const auto                      run = [&] {
        for (size_t i = next++; i < n; i = next++) {
            try {
                work(i);
            } catch (...) {
                failed[i] = std::current_exception();
            }
        }
    };
    std::vector<std::thread> helpers;
    const size_t             n_helpers = std::min(static_cast<size_t>(std::max(n_threads, 1)), n);
    try {
        while (helpers.size() + 1 < n_helpers) {
            helpers.emplace_back(run);
        }
    } catch (const std::system_error &) {  // no more threads are to be had: fewer do it
    }
    run();
    for (std::thread & helper : helpers) {
        helper.join();
    }
    for (const std::exception_ptr & exception : failed) {
        if (exception) {
            std::rethrow_exception(exception);
        }
    }
}

}  // namespace pd2
