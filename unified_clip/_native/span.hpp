// Spans: the numbers of one array, contiguous or with gaps. Lists of spans are scaled and clamped here. No Python here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "parallel.hpp"

#ifdef CLIP_AVX2
#include <cpuid.h>
#endif

namespace clip {

// -- the kernels for this processor

#ifdef CLIP_AVX2
// Return whether this processor has the instructions of AVX2_KERNELS. Some compilers do not accept the name "f16c".
inline bool has_avx2_kernels() {
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           ecx & bit_F16C;
}
#endif

struct InstructionSet {
    const char* name;
    const Kernels* kernels;
};

inline InstructionSet instruction_set() {
#ifdef CLIP_AVX2
    __builtin_cpu_init();
#endif
#ifdef CLIP_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && has_avx2_kernels())
        return {"AVX-512", AVX512_KERNELS};
#endif
#ifdef CLIP_AVX2
    if (has_avx2_kernels()) return {"AVX2", AVX2_KERNELS};
#endif
    return {"baseline", BASELINE_KERNELS};
}

inline const InstructionSet INSTRUCTION_SET = instruction_set();
inline const Kernels* const KERNEL_TABLE = INSTRUCTION_SET.kernels;

// Return null for an unknown code.
inline const Kernels* find_kernels(char code) {
    for (std::size_t dtype = 0; dtype < DTYPES; ++dtype)
        if (KERNEL_TABLE[dtype].code == code) return &KERNEL_TABLE[dtype];
    return nullptr;
}

// -- spans

constexpr std::size_t MAX_AXES = 65;  // the maximum of NumPy, and one axis for the parts of complex numbers

// `count` contiguous numbers. With a shape, an array whose steps are in bytes.
struct Span {
    char* data;
    std::size_t count;
    const Kernels* kernels;
    std::vector<std::int64_t> shape = {}, steps = {};

    bool is_contiguous() const { return shape.empty(); }
    std::size_t bytes() const { return count * kernels->size; }
    char* at(std::size_t index) const { return data + index * kernels->size; }  // for a contiguous span
};

using Spans = std::vector<Span>;

// 'F' is two float32, and 'D' is two float64.
inline bool is_complex(char code) { return code == 'F' || code == 'D'; }

// The kernels for complex numbers are the kernels of their parts. Return null for an unknown code.
inline const Kernels* kernels_of(char code) { return find_kernels(code == 'F' ? 'f' : code == 'D' ? 'd' : code); }

// Return the code of a framework's dtype, or '?' if it has none.
inline char code_of(int dtype, std::initializer_list<std::pair<int, char>> codes) {
    const auto found = std::find_if(codes.begin(), codes.end(), [=](const auto& each) { return each.first == dtype; });
    return found == codes.end() ? '?' : found->second;
}

// `count` numbers in order. A complex number is two real numbers. Throw for an unknown code.
inline Span span_of(char code, const void* data, std::size_t count) {
    const Kernels* kernels = kernels_of(code);
    if (!kernels) throw std::invalid_argument("unified_clip's kernels take floating-point and complex numbers");
    return {static_cast<char*>(const_cast<void*>(data)), count * (is_complex(code) ? 2 : 1), kernels};
}

// Return whether the elements fill the memory from the first to the last, in any order of the axes. `unit` is the
// distance between neighbours.
template <class Int>
bool is_dense(std::size_t axes, const Int* shape, const Int* steps, std::int64_t unit) {
    std::int64_t expected = unit;
    bool in_order = true;
    for (std::size_t axis = axes; axis-- > 0;) {
        if (shape[axis] == 0) return true;
        if (shape[axis] == 1) continue;
        if (steps && steps[axis] != expected) in_order = false;
        expected *= shape[axis];
    }
    if (in_order) return true;
    std::vector<std::pair<std::int64_t, std::int64_t>> sorted;
    for (std::size_t axis = 0; axis < axes; ++axis)
        if (shape[axis] > 1) sorted.emplace_back(steps[axis], shape[axis]);
    std::sort(sorted.begin(), sorted.end());
    expected = unit;
    for (const auto& [step, length] : sorted) {
        if (step != expected) return false;
        expected *= length;
    }
    return true;
}

// Put the numbers into the order of the memory, if there are no gaps.
inline void flatten(Span& span) {
    const auto unit = static_cast<std::int64_t>(span.kernels->size);
    if (is_dense(span.shape.size(), span.shape.data(), span.steps.data(), unit)) span.shape.clear(), span.steps.clear();
}

inline std::size_t total_count(const Spans& spans) {
    std::size_t total = 0;
    for (const Span& span : spans) total += span.count;
    return total;
}

// Return the number of threads for a list: one for each PIECE.
inline std::size_t threads_for(std::size_t total, std::size_t threads) {
    return std::max<std::size_t>(1, std::min(threads, total / PIECE));
}

// Call work(index, begin, end, thread) for parts of all spans. Each part has at most PIECE numbers.
template <class Work>
void for_parts(const Spans& spans, std::size_t threads, bool backwards, const Work& work) {
    std::vector<std::size_t> ends;
    ends.reserve(spans.size());
    std::size_t total = 0;
    for (const Span& span : spans) ends.push_back(total += span.count);
    for_pieces((total + PIECE - 1) / PIECE, threads, backwards, [&](std::size_t piece, std::size_t thread) {
        const std::size_t begin = piece * PIECE, end = std::min(total, begin + PIECE);
        std::size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
        for (std::size_t at = begin; at < end; ++i) {
            const std::size_t start = ends[i] - spans[i].count, stop = std::min(end, ends[i]);
            if (stop > at) work(i, at - start, stop - start, thread);
            at = stop;
        }
    });
}

// -- spans with gaps. Their numbers are copied to contiguous memory, BLOCK at a time

using Scratch = std::array<std::uint64_t, BLOCK>;  // for BLOCK numbers of any dtype

// Call move(place) for `count` numbers from the number at `begin`. The last axis varies fastest.
template <class Move>
void walk(const Span& span, std::size_t begin, std::size_t count, const Move& move) {
    const std::size_t last = span.shape.size() - 1;
    std::array<std::int64_t, MAX_AXES> index;
    char* place = span.data;
    auto rest = static_cast<std::int64_t>(begin);
    for (std::size_t axis = last + 1; axis-- > 0;) {
        index[axis] = rest % span.shape[axis];
        rest /= span.shape[axis];
        place += index[axis] * span.steps[axis];
    }
    for (auto left = static_cast<std::int64_t>(count); left;) {
        const std::int64_t here = std::min(left, span.shape[last] - index[last]);
        for (std::int64_t i = 0; i < here; ++i, place += span.steps[last]) move(place);
        left -= here;
        index[last] += here;
        for (std::size_t axis = last; axis > 0 && index[axis] == span.shape[axis]; --axis) {
            place += span.steps[axis - 1] - index[axis] * span.steps[axis];
            index[axis] = 0;
            ++index[axis - 1];
        }
    }
}

// Copy numbers from a span into `scratch` (GATHER), or from `scratch` into the span.
template <bool GATHER, std::size_t SIZE>
void copy_numbers(const Span& span, std::size_t begin, std::size_t count, char* scratch) {
    walk(span, begin, count, [&](char* place) {
        GATHER ? std::memcpy(scratch, place, SIZE) : std::memcpy(place, scratch, SIZE);
        scratch += SIZE;
    });
}

template <bool GATHER>
void copy_numbers(const Span& span, std::size_t begin, std::size_t count, char* scratch) {
    const std::size_t size = span.kernels->size;
    const auto copy = size == 2 ? copy_numbers<GATHER, 2> : copy_numbers<GATHER, 4>;
    (size == 8 ? copy_numbers<GATHER, 8> : copy)(span, begin, count, scratch);
}

// Call work(x, count) for the numbers from `begin` to `end`: all at once, or BLOCK at a time in a copy.
template <class Work>
void for_numbers(const Span& span, std::size_t begin, std::size_t end, const Work& work) {
    if (span.is_contiguous()) return work(span.at(begin), end - begin);
    Scratch memory;
    char* const scratch = reinterpret_cast<char*>(memory.data());
    for (; begin < end; begin += BLOCK) {
        const std::size_t count = std::min(BLOCK, end - begin);
        copy_numbers<true>(span, begin, count, scratch);
        work(scratch, count);
    }
}

// -- scaling and clamping

// Call compute(index, x, out, count) for the numbers of all spans. Results go to the same places of `to`, which
// may be `from`. Numbers that were read last come first, because they are in the cache.
template <class Compute>
void transform(const Spans& from, const Spans& to, std::size_t threads, const Compute& compute) {
    threads = threads_for(total_count(from), threads);
    for_parts(from, threads, true, [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t) {
        const Span& out = to[i];
        Scratch memory;
        char* const scratch = reinterpret_cast<char*>(memory.data());
        for_numbers(from[i], begin, end, [&](const char* x, std::size_t count) {
            for (const std::size_t stop = begin + count; begin < stop;) {
                const std::size_t here = out.is_contiguous() ? stop - begin : std::min(BLOCK, stop - begin);
                compute(i, x, out.is_contiguous() ? out.at(begin) : scratch, here);
                if (!out.is_contiguous()) copy_numbers<false>(out, begin, here, scratch);
                begin += here;
                x += here * out.kernels->size;
            }
        });
    });
}

// A coefficient for all spans, or one for each. A coefficient of 1 copies, so no bit of a NaN changes.
inline void scale(const Spans& from, const Spans& to, const std::vector<double>& coefs, std::size_t threads) {
    const Ieee ieee;
    transform(from, to, threads, [&](std::size_t i, const char* x, char* out, std::size_t count) {
        const double coef = coefs[coefs.size() == 1 ? 0 : i];
        if (coef == 1)
            std::memmove(out, x, count * from[i].kernels->size);
        else
            from[i].kernels->scale(x, out, count, coef);
    });
}

using Bounds = std::array<double, DTYPES>;  // a bound, rounded to each dtype in the order of CODES

inline void clamp(const Spans& from, const Spans& to, const Bounds& low, const Bounds& high, std::size_t threads) {
    transform(from, to, threads, [&](std::size_t i, const char* x, char* out, std::size_t count) {
        const Kernels* kernels = from[i].kernels;
        const auto dtype = kernels - KERNEL_TABLE;
        kernels->clamp(x, out, count, low[dtype], high[dtype]);
    });
}

}  // namespace clip
