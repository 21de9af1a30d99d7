// Threads that share the work of a kernel. They are started once, and wait on a condition between calls. Nothing here
// knows Python.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "kernels.hpp"

namespace clip {

// IEEE arithmetic for as long as it lives: a thread may have been told to flush subnormal numbers to zero.
class Ieee {
   public:
    Ieee() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~Ieee() { std::fesetenv(&saved_); }
    Ieee(const Ieee&) = delete;
    Ieee& operator=(const Ieee&) = delete;

   private:
    std::fenv_t saved_;
};

constexpr std::size_t PIECE = PAIR_BLOCK;  // numbers that a thread takes at a time, and to be worth another thread

inline std::size_t threads_for(std::size_t total, std::size_t threads) {
    return std::max<std::size_t>(1, std::min(threads, total / PIECE));
}

// The threads of the process. It is never destroyed: they wait until the process ends.
class ThreadPool {
   public:
    // The pool of this process. A child of fork() has none of its parent's threads, so it makes a pool of its own.
    static ThreadPool& here() {
        if (ThreadPool* pool = here_.load()) return *pool;
        ThreadPool *made = new ThreadPool, *none = nullptr;
        if (here_.compare_exchange_strong(none, made)) return *made;
        delete made;  // another thread was faster
        return *none;
    }

    // Calls work(i) for i below `count`, each once: here and in the other threads, whichever are awake first. Returns
    // when all have ended. False, and no call, if another thread has the pool.
    bool run(std::size_t count, const std::function<void(std::size_t)>& work) {
        const std::unique_lock<std::mutex> mine(in_use_, std::try_to_lock);
        if (!mine) return false;
        {
            const std::lock_guard<std::mutex> lock(state_);
            try {
                for (; threads_ + 1 < count; ++threads_) std::thread([this] { wait_for_work(); }).detach();
            } catch (const std::exception&) {  // no more threads to be had: those that are there do all
            }
            work_ = &work, next_ = 0, count_ = count;
        }
        for (std::size_t other = 1; other < count; ++other) work_there_is_.notify_one();
        std::unique_lock<std::mutex> lock(state_);
        take_all(lock);
        all_ended_.wait(lock, [this] { return running_ == 0; });
        return true;
    }

   private:
    void wait_for_work() {
        std::unique_lock<std::mutex> lock(state_);
        while (true) {
            work_there_is_.wait(lock, [this] { return next_ < count_; });
            take_all(lock);
        }
    }

    void take_all(std::unique_lock<std::mutex>& lock) {
        ++running_;
        while (next_ < count_) {
            const std::size_t mine = next_++;
            const auto& work = *work_;
            lock.unlock();
            work(mine);
            lock.lock();
        }
        if (--running_ == 0) all_ended_.notify_all();
    }

    inline static std::atomic<ThreadPool*> here_{nullptr};
#if defined(__unix__) || defined(__APPLE__)
    inline static const int forgotten_by_children_ = pthread_atfork(nullptr, nullptr, [] { here_.store(nullptr); });
#endif

    std::mutex in_use_, state_;
    std::condition_variable work_there_is_, all_ended_;
    const std::function<void(std::size_t)>* work_ = nullptr;
    std::size_t next_ = 0, count_ = 0, running_ = 0, threads_ = 0;
};

// Calls work(thread) for each of so many threads, one after the other where there are fewer. Throws the first exception
// of any once all have ended.
template <class Work>
void in_threads(std::size_t threads, const Work& work) {
    std::vector<std::exception_ptr> errors(threads);
    const std::function<void(std::size_t)> in_ieee = [&](std::size_t thread) {
        const Ieee ieee;
        try {
            work(thread);
        } catch (...) {
            errors[thread] = std::current_exception();
        }
    };
    if (threads == 1 || !ThreadPool::here().run(threads, in_ieee)) {
        for (std::size_t thread = 0; thread < threads; ++thread) in_ieee(thread);
    }
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace clip
