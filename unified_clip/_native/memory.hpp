// Memory for the results of a call. The system takes longer to provide fresh pages than a kernel takes to fill them,
// and a training loop needs the same sizes in every step. So the pool keeps released memory for later calls. The system
// can take the pages back. Long results have separate memory, and short results share blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

#ifdef _WIN32
#include <malloc.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace clip {

constexpr std::size_t LINE = 64;  // the alignment of memory that frameworks share

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

// `unit` is the alignment of the block, and divides `bytes`.
#ifdef __linux__
inline char* map_pages(std::size_t bytes, std::size_t unit) {
    // Not malloc, because free() may keep memory instead of returning it to the system.
    void* const mapped = mmap(nullptr, bytes + unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    char* const begin = static_cast<char*>(mapped);
    const std::size_t before = (unit - reinterpret_cast<std::uintptr_t>(begin) % unit) % unit;
    if (before) munmap(begin, before);
    munmap(begin + before + bytes, unit - before);
    return begin + before;
}

inline void unmap_pages(char* memory, std::size_t bytes) { munmap(memory, bytes); }
#else
inline char* map_pages(std::size_t bytes, std::size_t unit) { return allocate(bytes, unit); }
inline void unmap_pages(char* memory, std::size_t) { deallocate(memory); }
#endif

// The memory of one long result, or of several short results.
struct Block {
    char* memory;
    std::size_t bytes;
    std::atomic<std::size_t> live{0};  // the number of results
};

// Unused blocks, for later calls.
class Pool {
   public:
    // The pool is never destroyed, because results can outlive everything else.
    static Pool& get() {
        static Pool* const pool = new Pool;
        return *pool;
    }

    Block* take(std::size_t bytes) {
        const bool huge = bytes >= 2 * HUGE_PAGE;
        const std::size_t unit = huge ? HUGE_PAGE : PAGES;
        bytes = round_up(bytes, unit);
        if (Block* kept = kept_block(bytes)) return kept;
        auto block = std::make_unique<Block>();
        block->bytes = bytes;
        try {
            block->memory = map_pages(bytes, unit);
        } catch (const std::bad_alloc&) {
            drop_older_than(0);
            block->memory = map_pages(bytes, unit);
        }
#ifdef MADV_HUGEPAGE
        if (huge) madvise(block->memory, bytes, MADV_HUGEPAGE);
#endif
        return block.release();
    }

    void give(Block* block) noexcept {
#ifdef MADV_FREE
        if (const Lock lock{busy_}; lock.held) try {
                kept_.push_back({block, call_});
                madvise(block->memory, block->bytes, MADV_FREE);
                return;
            } catch (const std::bad_alloc&) {
            }
#endif
        destroy(block);
    }

    // Return blocks to the system that recent calls did not use.
    void begin_call() {
        ++call_;
        drop_older_than(CALLS);
    }

   private:
    static constexpr std::size_t HUGE_PAGE = std::size_t(1) << 21, PAGES = std::size_t(1) << 16;
    static constexpr std::uint64_t CALLS = 8;

    struct Kept {
        Block* block;
        std::uint64_t since;
    };

    // Never wait, because the thread that has the lock does not exist in a child of fork().
    struct Lock {
        explicit Lock(std::atomic_flag& flag) : flag(flag), held(!flag.test_and_set(std::memory_order_acquire)) {}
        ~Lock() {
            if (held) flag.clear(std::memory_order_release);
        }
        std::atomic_flag& flag;
        const bool held;
    };

    Block* kept_block(std::size_t bytes) {
        const Lock lock{busy_};
        if (!lock.held) return nullptr;
        const auto fits = [=](const Kept& each) { return each.block->bytes == bytes; };
        const auto found = std::find_if(kept_.rbegin(), kept_.rend(), fits);
        if (found == kept_.rend()) return nullptr;
        Block* block = found->block;
        kept_.erase(std::next(found).base());
        return block;
    }

    void drop_older_than(std::uint64_t calls) {
        const Lock lock{busy_};
        if (!lock.held) return;
        const auto old = [&](const Kept& each) {
            if (call_ - each.since < calls) return false;
            destroy(each.block);
            return true;
        };
        kept_.erase(std::remove_if(kept_.begin(), kept_.end(), old), kept_.end());
    }

    static void destroy(Block* block) {
        unmap_pages(block->memory, block->bytes);
        delete block;
    }

    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    std::vector<Kept> kept_;
    std::atomic<std::uint64_t> call_{0};
};

// The memory of a result, in a block or allocated separately.
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

// Places for results of these sizes. A result that is kept keeps at most SHARED bytes of other results alive. The
// destructor releases places that no result has taken over.
class Places {
   public:
    explicit Places(const std::vector<std::size_t>& sizes) : Places() {
        places_.reserve(sizes.size());
        std::size_t total = 0;
        for (std::size_t size : sizes) total += round_up(size, LINE);
        if (total < FEW) {
            for (std::size_t size : sizes) places_.push_back({allocate(size, LINE), nullptr});
            return;
        }
        Pool::get().begin_call();
        for (std::size_t i = 0; i < sizes.size();) {
            std::size_t end = i, bytes = 0;
            do bytes += round_up(sizes[end++], LINE);
            while (end < sizes.size() && bytes + sizes[end] <= SHARED);
            Block* block = Pool::get().take(bytes);
            block->live = end - i;
            for (char* memory = block->memory; i < end; memory += round_up(sizes[i++], LINE))
                places_.push_back({memory, block});
        }
    }
    ~Places() {
        for (; taken_ < places_.size(); ++taken_) places_[taken_].release();
    }
    Places(const Places&) = delete;
    Places& operator=(const Places&) = delete;

    const Place& operator[](std::size_t i) const { return places_[i]; }
    void take_over() { ++taken_; }  // the next place

   private:
    static constexpr std::size_t SHARED = std::size_t(1) << 20, FEW = 4 * SHARED;

    Places() = default;  // the destructor also runs if a constructor throws after delegating to this constructor

    std::vector<Place> places_;
    std::size_t taken_ = 0;
};

}  // namespace clip
