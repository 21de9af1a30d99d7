// Run CUDA C++ on the CPU: one block after another, and the threads of a block as coroutines that take turns.
//
// `__syncthreads` and a shuffle end a turn. So all threads of a block have to arrive at the same ones, in the same order,
// which is checked. Blocks run in a scrambled order, since no kernel may depend on theirs. The address sanitizer sees
// each access of a kernel, because its memory is that of the process.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // one block runs at a time

struct Place {
    unsigned x;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline Place threadIdx, blockIdx, gridDim;

namespace emulation {

constexpr std::size_t STACK = 1 << 17;

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK);
    int waits_at = 0;  // what its turn has ended with: 0 is its end
    double shown[2];   // the values of its last two shuffles
    unsigned shuffles;
};
inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline void* main_stack;
inline std::size_t main_size;

inline void switch_to(ucontext_t& from, ucontext_t& to, void* stack, std::size_t size) {
#ifdef __SANITIZE_ADDRESS__
    void* fake;
    __sanitizer_start_switch_fiber(&fake, stack, size);
    swapcontext(&from, &to);
    const void* old;
    std::size_t old_size;
    __sanitizer_finish_switch_fiber(fake, &old, &old_size);
#else
    (void)stack, (void)size;
    swapcontext(&from, &to);
#endif
}

// End this thread's turn. `mark` differs between the places that end turns.
inline void wait(int mark) {
    Thread& thread = threads[threadIdx.x];
    thread.waits_at = mark;
    switch_to(thread.context, scheduler, main_stack, main_size);
}

[[noreturn]] inline void fail(const char* message) {
    std::fprintf(stderr, "emulated GPU: %s\n", message);
    std::abort();
}

inline void (*body)();

inline void start() {
#ifdef __SANITIZE_ADDRESS__
    const void* stack;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &main_size);
    main_stack = const_cast<void*>(stack);
#endif
    body();
    threads[threadIdx.x].waits_at = 0;
    switch_to(threads[threadIdx.x].context, scheduler, main_stack, main_size);
}

template <class Body>
void run_block(unsigned count, const Body& work) {
    static const Body* current;
    current = &work;
    body = [] { (*current)(); };
    threads.resize(count);
    for (Thread& thread : threads) {
        getcontext(&thread.context);
        thread.context.uc_stack = {thread.stack.data(), 0, STACK};
        thread.context.uc_link = nullptr;
        thread.shuffles = 0;
        makecontext(&thread.context, start, 0);
    }
    for (bool running = true; running;) {
        for (unsigned i = 0; i < count; ++i) {
            threadIdx = {i};
            switch_to(scheduler, threads[i].context, threads[i].stack.data(), STACK);
            if (threads[i].waits_at != threads[0].waits_at) fail("the threads of a block wait at different places");
        }
        running = threads[0].waits_at != 0;
    }
}

// Call kernel(arguments...), whose addresses are in `parameters`, in each thread of each block.
template <class... Arguments, std::size_t... I>
void launch(void (*kernel)(Arguments...), void** parameters, unsigned blocks, unsigned count, std::index_sequence<I...>) {
    const std::tuple<Arguments...> copies(*static_cast<std::remove_cv_t<Arguments>*>(parameters[I])...);
    gridDim = {blocks};
    for (unsigned i = 0; i < blocks; ++i) {
        blockIdx = {static_cast<unsigned>((i * 7919ull + 3) % blocks)};
        if (blocks % 7919 == 0) blockIdx = {i};
        run_block(count, [&] { kernel(std::get<I>(copies)...); });
    }
}
template <class... Arguments>
void launch(void (*kernel)(Arguments...), void** parameters, unsigned blocks, unsigned count) {
    launch(kernel, parameters, blocks, count, std::index_sequence_for<Arguments...>());
}

}  // namespace emulation

inline void __syncthreads() { emulation::wait(1); }

inline double __shfl_xor_sync(unsigned, double value, unsigned distance) {
    emulation::Thread& thread = emulation::threads[threadIdx.x];
    const unsigned slot = thread.shuffles++ % 2;  // others may still read the value before
    thread.shown[slot] = value;
    emulation::wait(1 + static_cast<int>(distance));
    return emulation::threads[threadIdx.x ^ distance].shown[slot];
}

template <class T>
T __ldcs(const T* at) {
    return *at;
}
template <class T>
void __stcs(T* at, T value) {
    *at = value;
}

template <class To, class From>
To same_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return same_bits<double>(x); }
inline float half_to_float(unsigned short bits) { return same_bits<_Float16>(bits); }
inline unsigned short float_to_half(float x) { return same_bits<unsigned short>(static_cast<_Float16>(x)); }

using std::fabs, std::floor, std::fma, std::rint, std::sqrt;
