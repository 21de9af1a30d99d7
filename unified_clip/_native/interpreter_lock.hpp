// The interpreter lock, for threads that still run when the interpreter ends.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <thread>

#if __has_include(<cxxabi.h>)
#include <cxxabi.h>
#endif

namespace clip {

// Up to version 3.13, Python ends a daemon thread that requests the lock during shutdown. glibc then unwinds the
// thread's stack, and aborts the process at the first C++ frame that catches every exception. So such a thread waits
// here until the process ends, as it does in Python 3.14.
[[noreturn]] inline void wait_for_exit() {
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

// `work` calls Python.
template <class Work>
decltype(auto) until_exit(const Work& work) {
#ifdef __GLIBCXX__
    try {
        return work();
    } catch (const abi::__forced_unwind&) {
        wait_for_exit();
    }
#else
    return work();
#endif
}

// Releases the lock as long as this object lives.
class Unlocked {
   public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() {
        until_exit([this] { PyEval_RestoreThread(state_); });
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    PyThreadState* const state_;
};

}  // namespace clip
