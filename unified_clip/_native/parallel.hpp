// Threads that share the work of a kernel. They start once, and wait on a condition between calls. No Python here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace clip {

// IEEE arithmetic as long as this object lives. Otherwise, the calling thread may flush subnormal numbers to zero.
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

// The threads of the process. The pool is never destroyed, because its threads wait until the process ends.
class ThreadPool {
   public:
    using Work = std::function<void(std::size_t)>;

    // Return the pool of this process. A child of fork() creates a new pool, because it has none of its parent's
    // threads.
    static ThreadPool& here() {
        if (ThreadPool* pool = here_.load()) return *pool;
        ThreadPool *pool = new ThreadPool, *existing = nullptr;
        if (here_.compare_exchange_strong(existing, pool)) return *pool;
        delete pool;  // another thread was faster
        return *existing;
    }

    // Call work(0) here, and work(i) in thread i for each i below `count` if the thread wakes up before work(0) ends.
    // Return when all calls have ended. work(0) must complete all work that no other call has begun. While another call
    // uses the pool, only work(0) is called.
    void run(std::size_t count, const Work& work) {
        const std::unique_lock<std::mutex> only_user(in_use_, std::try_to_lock);
        if (!only_user) return work(0);
        std::unique_lock<std::mutex> lock(state_);
        start(count - 1);
        alone_ = true;
        const std::size_t woken = std::min(count - 1, workers_.size());
        for (std::size_t i = 0; i < woken; ++i) workers_[i].work = &work;
        lock.unlock();
        for (std::size_t i = 0; i < woken; ++i) workers_[i].has_work.notify_one();
        work(0);
        lock.lock();
        for (std::size_t i = 0; i < woken; ++i) workers_[i].work = nullptr;
        all_ended_.wait(lock, [this] { return running_ == 0; });
    }

    // Return whether no other thread has helped with the last work.
    bool was_alone() const { return alone_; }

   private:
    struct Worker {
        std::condition_variable has_work;
        const Work* work = nullptr;
    };

    // Start threads until there are `count` threads, or the system provides no more.
    void start(std::size_t count) {
        while (workers_.size() < count) {
            Worker& worker = workers_.emplace_back();
            try {
                std::thread([this, &worker, index = workers_.size()] { serve(worker, index); }).detach();
            } catch (const std::system_error&) {
                return workers_.pop_back();
            }
        }
    }

    void serve(Worker& worker, std::size_t index) {
        std::unique_lock<std::mutex> lock(state_);
        while (true) {
            worker.has_work.wait(lock, [&] { return worker.work; });
            const Work& work = *worker.work;
            worker.work = nullptr;
            alone_ = false;
            ++running_;
            lock.unlock();
            work(index);
            lock.lock();
            if (--running_ == 0) all_ended_.notify_one();
        }
    }

    inline static std::atomic<ThreadPool*> here_{nullptr};
#if defined(__unix__) || defined(__APPLE__)
    inline static const int forgotten_by_children_ = pthread_atfork(nullptr, nullptr, [] { here_.store(nullptr); });
#endif

    std::mutex in_use_, state_;
    std::condition_variable all_ended_;
    std::deque<Worker> workers_;  // a deque never moves its items
    std::size_t running_ = 0;
    std::atomic<bool> alone_{false};
};

// Call work(piece, thread) once for each piece below `pieces`, in up to `threads` threads. `work` must not throw.
//
// For the same arguments, each thread has the same range of pieces, so its cache has numbers from the previous call.
// With `backwards`, a thread begins with the pieces that it read last. A thread that has finished its range takes
// pieces of other threads, so that no thread waits for a thread that started late. If one thread has read all ranges in
// the previous call, `backwards` also reverses the order of the ranges.
template <class Function>
void for_pieces(std::size_t pieces, std::size_t threads, bool backwards, const Function& work) {
    threads = std::max<std::size_t>(1, std::min(threads, pieces));
    struct Range {
        std::atomic<std::size_t> taken{0};
        char padding[64 - sizeof taken];  // up to the next cache line
    };
    std::vector<Range> ranges(threads);
    const bool reversed = backwards && threads > 1 && ThreadPool::here().was_alone();
    const auto share = [&](std::size_t thread) {
        const Ieee ieee;
        for (std::size_t turn = 0; turn < threads; ++turn) {
            const std::size_t place = (thread + turn) % threads, owner = reversed ? threads - 1 - place : place;
            const std::size_t begin = pieces * owner / threads, end = pieces * (owner + 1) / threads;
            for (std::size_t i; (i = ranges[owner].taken++) < end - begin;)
                work(backwards ? end - 1 - i : begin + i, thread);
        }
    };
    if (threads == 1) return share(0);
    ThreadPool::here().run(threads, std::cref(share));
}

}  // namespace clip
