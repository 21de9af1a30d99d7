// Scaling and clamping of lists. No Python here.
#pragma once

#include "span.hpp"

namespace clip {

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
