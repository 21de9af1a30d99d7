// Memory for the results of a call. Fresh pages cost more to be handed out than to be filled, and a training loop asks
// for the same sizes again and again: what is released is kept for the next calls, and the system told that it may take
// the pages back when it needs them. Long results have memory of their own; short ones share some.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#ifdef _WIN32
#include <malloc.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace clip {

constexpr std::size_t LINE = 64;  // how frameworks want memory aligned that they share

inline std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

inline char* allocate(std::size_t bytes, std::size_t unit) {
#ifdef _WIN32
    void* memory = _aligned_malloc(round_up(bytes, unit), unit);
#else
    void* memory = std::aligned_alloc(unit, round_up(bytes, unit));
#endif
    if (!memory) throw std::bad_alloc();
    return static_cast<char*>(memory);
}

inline void deallocate(void* memory) {
#ifdef _WIN32
    _aligned_free(memory);
#else
    std::free(memory);
#endif
}

// Memory that several results share.
struct Block {
    char* memory;
    std::size_t bytes;
    std::atomic<std::size_t> live{0};  // results
};

// Blocks that nobody uses, for the next calls.
class Pool {
   public:
    static constexpr std::size_t HUGE_PAGE = std::size_t(1) << 21;

    // Of the process, and never destroyed: results may outlive everything else.
    static Pool& get() {
        static Pool* const pool = new Pool;
        return *pool;
    }

    Block* take(std::size_t bytes) {
        bytes = round_up(bytes, HUGE_PAGE);
        if (const Lock lock{busy_}; lock.held) {
            for (std::size_t i = kept_.size(); i-- > 0;)
                if (kept_[i].block->bytes == bytes) {
                    Block* block = kept_[i].block;
                    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
                    return block;
                }
        }
        char* memory = allocate(bytes, HUGE_PAGE);
#ifdef MADV_HUGEPAGE
        madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        return new Block{memory, bytes};
    }

    void give(Block* block) {
#ifdef MADV_FREE
        if (const Lock lock{busy_}; lock.held) {
            madvise(block->memory, block->bytes, MADV_FREE);
            kept_.push_back({block, call_});
            return;
        }
#endif
        destroy(block);
    }

    // What the last calls had no use for goes back to the system.
    void begin_call() {
        const Lock lock{busy_};
        if (!lock.held) return;
        ++call_;
        std::size_t left = 0;
        for (const Kept& each : kept_)
            if (call_ - each.since > CALLS)
                destroy(each.block);
            else
                kept_[left++] = each;
        kept_.resize(left);
    }

   private:
    static constexpr std::uint64_t CALLS = 8;

    struct Kept {
        Block* block;
        std::uint64_t since;
    };

    // Never waits: in a child of fork, the thread that held it is gone.
    struct Lock {
        explicit Lock(std::atomic_flag& flag) : flag(flag), held(!flag.test_and_set(std::memory_order_acquire)) {}
        ~Lock() {
            if (held) flag.clear(std::memory_order_release);
        }
        std::atomic_flag& flag;
        const bool held;
    };

    static void destroy(Block* block) {
        deallocate(block->memory);
        delete block;
    }

    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    std::vector<Kept> kept_;
    std::uint64_t call_ = 0;
};

// A result's memory: in a block, or allocated on its own.
struct Place {
    char* memory;
    Block* block;

    void release() const {
        if (!block)
            deallocate(memory);
        else if (--block->live == 0)
            Pool::get().give(block);
    }
};

// Places for results of these sizes. Whoever keeps one of them keeps no more than SHARED bytes of others alive.
inline std::vector<Place> places_for(const std::vector<std::size_t>& sizes) {
    constexpr std::size_t SHARED = 8 * Pool::HUGE_PAGE, FEW = 2 * Pool::HUGE_PAGE;
    std::size_t total = 0;
    for (std::size_t size : sizes) total += round_up(size, LINE);
    std::vector<Place> places;
    places.reserve(sizes.size());
    if (total < FEW) {
        for (std::size_t size : sizes) places.push_back({allocate(size, LINE), nullptr});
        return places;
    }
    Pool::get().begin_call();
    for (std::size_t i = 0; i < sizes.size();) {
        std::size_t end = i, bytes = 0;
        do bytes += round_up(sizes[end++], LINE);
        while (end < sizes.size() && bytes + sizes[end] <= SHARED);
        Block* block = Pool::get().take(bytes);
        block->live = end - i;
        for (char* memory = block->memory; i < end; memory += round_up(sizes[i++], LINE)) places.push_back({memory, block});
    }
    return places;
}

}  // namespace clip
