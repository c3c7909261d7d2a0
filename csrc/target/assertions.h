#pragma once

#include <string>

namespace pd2 {

// llama.cpp asserts on much that a damaged file can hold, and a failed assertion ends the process. On the thread that
// made it, while it lives, one throws std::runtime_error instead. For calls that build models, contexts and graphs: where
// a graph is computed the other threads would wait for this one for ever.
class AssertionGuard {
  public:
    AssertionGuard();
    AssertionGuard(const AssertionGuard &)             = delete;
    AssertionGuard & operator=(const AssertionGuard &) = delete;
    ~AssertionGuard();

    // The first assertion that failed on this thread since the guard was made, with its file's name; else empty.
    static const std::string & failed();
};

}  // namespace pd2
