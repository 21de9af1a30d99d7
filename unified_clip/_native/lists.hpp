// The kernels over whole lists of buffers, shared among threads by the total length. Nothing here knows Python.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "parallel.hpp"

namespace clip {

enum Code : char { FLOAT16 = 'e', BFLOAT16 = 'B', FLOAT32 = 'f', FLOAT64 = 'd' };
constexpr char CODES[] = "eBfd";

// Of a whole buffer.
enum ComplexCode : char { COMPLEX64 = 'F', COMPLEX128 = 'D' };
constexpr char ALL_CODES[] = "eBfdFD";

[[noreturn]] inline void reject_code(char code) {
    throw std::invalid_argument(std::string("this kernel has no numbers of code '") + code + "'");
}

inline std::size_t size_of(char code) {
    switch (code) {
        case FLOAT64:
            return 8;
        case FLOAT32:
            return 4;
        case BFLOAT16:
        case FLOAT16:
            return 2;
        default:
            reject_code(code);
    }
}

constexpr std::size_t MOST_AXES = 65;  // of NumPy's arrays, and one for the parts of complex numbers

// Numbers in memory: `count` in a row, or, where there is a shape, an array with these steps in bytes.
struct Run {
    char* data;
    std::size_t count;
    char code;
    std::vector<std::int64_t> shape = {}, steps = {};

    bool in_a_row() const { return shape.empty(); }
};

// Whether each element has a place of its own, and they fill the memory from the first to the last: steps of one
// element, the `unit`, and up.
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

inline bool is_dense(const Run& run) {
    return is_dense(run.shape.size(), run.shape.data(), run.steps.data(), static_cast<std::int64_t>(size_of(run.code)));
}

// The same numbers in the order of the memory, where there are no gaps.
inline void straighten(Run& run) {
    if (!run.in_a_row() && is_dense(run)) run.shape.clear(), run.steps.clear();
}

// float64 to float32 in IEEE arithmetic; `volatile` keeps the conversion where it stands.
inline float narrowed(double value) {
    volatile double given = value;
    const Ieee ieee;
    volatile float result = static_cast<float>(given);
    return result;
}

// -- the parts of a list

// Calls work(run, begin, end, thread) for the parts of all runs. Each thread takes the next piece when it is done with
// the last, so that none waits for one that started late. `backwards`: what was read last comes first.
template <class Work>
void in_pieces(const std::vector<Run>& runs, std::size_t threads, bool backwards, const Work& work) {
    std::vector<std::size_t> ends;
    ends.reserve(runs.size());
    std::size_t total = 0;
    for (const Run& run : runs) ends.push_back(total += run.count);
    const std::size_t pieces = (total + PIECE - 1) / PIECE;
    std::atomic<std::size_t> taken{0};
    in_threads(threads, [&](std::size_t thread) {
        for (std::size_t piece; (piece = taken++) < pieces;) {
            const std::size_t begin = (backwards ? pieces - 1 - piece : piece) * PIECE;
            const std::size_t end = std::min(total, begin + PIECE);
            std::size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
            for (std::size_t at = begin; at < end; ++i) {
                const std::size_t start = ends[i] - runs[i].count, stop = std::min(end, ends[i]);
                if (stop > at) work(i, at - start, stop - start, thread);
                at = stop;
            }
        }
    });
}

inline std::size_t total_of(const std::vector<Run>& runs) {
    std::size_t total = 0;
    for (const Run& run : runs) total += run.count;
    return total;
}

// -- runs with gaps: their numbers, BLOCK at a time, in a row

// Calls move(place) for each of `count` numbers from the one at `begin`, the last axis running fastest.
template <class Move>
void walk(const Run& run, std::size_t begin, std::size_t count, const Move& move) {
    const std::size_t last = run.shape.size() - 1;
    std::array<std::int64_t, MOST_AXES> index;
    char* place = run.data;
    auto rest = static_cast<std::int64_t>(begin);
    for (std::size_t axis = last + 1; axis-- > 0;) {
        index[axis] = rest % run.shape[axis];
        rest /= run.shape[axis];
        place += index[axis] * run.steps[axis];
    }
    for (auto left = static_cast<std::int64_t>(count); left;) {
        const std::int64_t here = std::min(left, run.shape[last] - index[last]);
        for (std::int64_t i = 0; i < here; ++i, place += run.steps[last]) move(place);
        left -= here;
        index[last] += here;
        for (std::size_t axis = last; axis > 0 && index[axis] == run.shape[axis]; --axis) {
            place += run.steps[axis - 1] - index[axis] * run.steps[axis];
            index[axis] = 0;
            ++index[axis - 1];
        }
    }
}

using Room = std::array<std::uint64_t, BLOCK>;  // for BLOCK numbers of any format

template <std::size_t SIZE>
void gather(const Run& run, std::size_t begin, std::size_t count, void* room) {
    char* out = static_cast<char*>(room);
    walk(run, begin, count, [&](const char* place) {
        std::memcpy(out, place, SIZE);
        out += SIZE;
    });
}

template <std::size_t SIZE>
void scatter(const Run& run, std::size_t begin, std::size_t count, const void* room) {
    const char* from = static_cast<const char*>(room);
    walk(run, begin, count, [&](char* place) {
        std::memcpy(place, from, SIZE);
        from += SIZE;
    });
}

// `count` numbers of a run as they are in memory, or copied to `room`.
inline const char* numbers_of(const Run& run, std::size_t begin, std::size_t count, Room& room) {
    const std::size_t size = size_of(run.code);
    if (run.in_a_row()) return run.data + begin * size;
    (size == 8 ? gather<8> : size == 4 ? gather<4> : gather<2>)(run, begin, count, room.data());
    return reinterpret_cast<const char*>(room.data());
}

// Calls work(x, count) for the numbers from `begin` to `end`: all at once, or BLOCK at a time where they have gaps.
template <class Work>
void for_numbers(const Run& run, std::size_t begin, std::size_t end, const Work& work) {
    if (run.in_a_row()) return work(run.data + begin * size_of(run.code), end - begin);
    Room room;
    for (; begin < end; begin += BLOCK) {
        const std::size_t count = std::min(BLOCK, end - begin);
        work(numbers_of(run, begin, count, room), count);
    }
}

template <class T>
const Unaligned<T>* as(const char* place) {
    return reinterpret_cast<const Unaligned<T>*>(place);
}

template <class T>
Unaligned<T>* as(char* place) {
    return reinterpret_cast<Unaligned<T>*>(place);
}

// -- norms

inline double block_sum(char code, const char* x, std::size_t count, bool squared) {
    switch (code) {
        case FLOAT32:
            return (squared ? squares_float32 : magnitudes_float32)(as<float>(x), count);
        case BFLOAT16:
            return (squared ? squares_bfloat16 : magnitudes_bfloat16)(as<std::uint16_t>(x), count);
        case FLOAT16:
            return (squared ? squares_float16 : magnitudes_float16)(as<std::uint16_t>(x), count);
        default:
            reject_code(code);
    }
}

inline Pair pair_sum(char code, const char* x, std::size_t count, bool squared) {
    switch (code) {
        case FLOAT64:
            return (squared ? square_pairs_float64 : magnitude_pairs_float64)(as<double>(x), count);
        case FLOAT32:
            return (squared ? square_pairs_float32 : magnitude_pairs_float32)(as<float>(x), count);
        case BFLOAT16:
            return (squared ? square_pairs_bfloat16 : magnitude_pairs_bfloat16)(as<std::uint16_t>(x), count);
        case FLOAT16:
            return (squared ? square_pairs_float16 : magnitude_pairs_float16)(as<std::uint16_t>(x), count);
        default:
            reject_code(code);
    }
}

inline void exact_sum(Accumulator& sum, char code, const char* x, std::size_t count, bool squared) {
    switch (code) {
        case FLOAT64:
            return add_exactly<Float64>(sum, as<double>(x), count, squared);
        case FLOAT32:
            return add_exactly<Float32>(sum, as<float>(x), count, squared);
        case BFLOAT16:
            return add_exactly<BFloat16>(sum, as<std::uint16_t>(x), count, squared);
        case FLOAT16:
            return add_exactly<Float16>(sum, as<std::uint16_t>(x), count, squared);
        default:
            reject_code(code);
    }
}

// Numbers of several short runs that are added up in float64 before the sum goes into the accumulator.
struct Partial {
    Accumulator sum;
    double block = 0;
    std::size_t in_block = 0;

    void add(double value, std::size_t count) {
        if (in_block + count > BLOCK) flush();
        block += value;
        in_block += count;
    }

    void flush() {
        if (in_block) sum.add(block);
        block = 0;
        in_block = 0;
    }
};

// Throws for float64 numbers, of which float64 sums are not exact enough.
inline void reject_float64(const std::vector<Run>& runs) {
    for (const Run& run : runs)
        if (run.code == FLOAT64) throw std::invalid_argument("float64 has no block sums");
}

// How much of a sum may be lost: 2^-40 in blocks, 2^-80 in pairs, nothing.
enum class Sum { BLOCKS, PAIRS, EXACT };

inline void add_pair(Accumulator& sum, char code, const char* x, std::size_t count, bool squared) {
    constexpr double LEAST = 0x1p-850;  // so much is not changed by all that products of float64 lose below 2^-1074
    const Pair pair = pair_sum(code, x, count, squared);
    if (!(pair.sum >= LEAST && pair.sum <= std::numeric_limits<double>::max()))
        return exact_sum(sum, code, x, count, squared);
    sum.add(pair.sum);
    sum.add(pair.rest);
}

inline Accumulator power_sum(const std::vector<Run>& runs, int p, Sum how, std::size_t threads) {
    if (p != 1 && p != 2) throw std::invalid_argument("p is 1 or 2");
    if (how == Sum::BLOCKS) reject_float64(runs);
    const bool squared = p == 2;
    std::vector<Partial> partial(threads_for(total_of(runs), threads));
    in_pieces(runs, partial.size(), false, [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t thread) {
        const char code = runs[i].code;
        Partial& mine = partial[thread];
        for_numbers(runs[i], begin, end, [&](const char* x, std::size_t count) {
            if (how == Sum::EXACT) return exact_sum(mine.sum, code, x, count, squared);
            if (how == Sum::PAIRS) return add_pair(mine.sum, code, x, count, squared);  // a piece is a PAIR_BLOCK
            for (std::size_t start = 0; start < count; start += BLOCK) {
                const std::size_t here = std::min(BLOCK, count - start);
                mine.add(block_sum(code, x + start * size_of(code), here, squared), here);
            }
        });
    });
    for (Partial& each : partial) each.flush();
    for (std::size_t i = 1; i < partial.size(); ++i) partial[0].sum.merge(partial[i].sum);
    return partial[0].sum;
}

// The sum of squares of each run; throws for float64. These are float64 sums that may lose the second of themselves.
inline std::pair<std::vector<double>, std::vector<double>> each_square_sum(const std::vector<Run>& runs,
                                                                           std::size_t threads) {
    reject_float64(runs);
    threads = threads_for(total_of(runs), threads);
    std::vector<std::vector<double>> partial(threads, std::vector<double>(runs.size()));
    in_pieces(runs, threads, false, [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t thread) {
        const char* x = runs[i].data;
        for (; begin < end; begin += BLOCK)
            partial[thread][i] += block_sum(runs[i].code, x + begin * size_of(runs[i].code),
                                            std::min(BLOCK, end - begin), true);
    });
    std::vector<double> lost;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        for (std::size_t thread = 1; thread < threads; ++thread) partial[0][i] += partial[thread][i];
        // Of each block; and of the additions of blocks, of which there are no more than these.
        const double additions = static_cast<double>(runs[i].count / BLOCK + runs[i].count / PIECE + threads + 4);
        lost.push_back(0x1p-40 + additions * 0x1p-52);
    }
    return {partial[0], lost};
}

// -- the norms of slices

// An axis of an array: from one element to the next in bytes, and from its sum to the next one's, 0 in the same slice.
struct Axis {
    std::int64_t length, step, sum_step;
};

// Axes in the order of the memory, the last with the shortest steps; those that one can stand for are one.
inline std::vector<Axis> merged(std::vector<Axis> axes) {
    std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return std::abs(a.step) > std::abs(b.step); });
    std::vector<Axis> found;
    for (const Axis& axis : axes) {
        if (axis.length == 1) continue;
        const Axis* outer = found.empty() ? nullptr : &found.back();
        if (outer && outer->step == axis.step * axis.length && outer->sum_step == axis.sum_step * axis.length)
            found.back() = {outer->length * axis.length, axis.step, axis.sum_step};
        else
            found.push_back(axis);
    }
    if (found.empty()) found.push_back({1, 0, 0});
    return found;
}

// Adds the squares along one axis.
inline void add_squares(char code, const char* x, double* sums, const Axis& axis) {
    const auto size = static_cast<std::int64_t>(size_of(code));
    const auto count = static_cast<std::size_t>(axis.length);
    if (axis.step == size && axis.sum_step == 0) {
        for (std::size_t start = 0; start < count; start += BLOCK)
            *sums += block_sum(code, x + start * size, std::min(BLOCK, count - start), true);
    } else if (axis.step == size && axis.sum_step == 1) {
        switch (code) {
            case FLOAT32:
                return add_squares_float32(as<float>(x), sums, count);
            case BFLOAT16:
                return add_squares_bfloat16(as<std::uint16_t>(x), sums, count);
            case FLOAT16:
                return add_squares_float16(as<std::uint16_t>(x), sums, count);
            default:
                reject_code(code);
        }
    } else {
        for (std::size_t i = 0; i < count; ++i, x += axis.step, sums += axis.sum_step) *sums += block_sum(code, x, 1, true);
    }
}

inline void add_squares(char code, const char* x, double* sums, const Axis* axes, std::size_t count) {
    if (count == 1) return add_squares(code, x, sums, *axes);
    for (std::int64_t i = 0; i < axes->length; ++i)
        add_squares(code, x + i * axes->step, sums + i * axes->sum_step, axes + 1, count - 1);
}

// Adds the squares of an array, not float64, to a float64 sum for each slice.
inline void slice_sums(char code, const char* x, double* sums, std::vector<Axis> axes, std::size_t threads) {
    axes = merged(std::move(axes));
    // Threads share the longest axis along which sums differ.
    const auto longer = [](const Axis& a, const Axis& b) {
        return (a.sum_step ? a.length : 0) < (b.sum_step ? b.length : 0);
    };
    const auto shared = std::max_element(axes.begin(), axes.end(), longer);
    const Axis whole = *shared;
    std::size_t total = 1;
    for (const Axis& axis : axes) total *= static_cast<std::size_t>(axis.length);
    const std::int64_t parts =
        whole.sum_step ? std::min<std::int64_t>(whole.length, static_cast<std::int64_t>(threads_for(total, threads))) : 1;
    std::vector<std::vector<Axis>> of_threads(static_cast<std::size_t>(parts), axes);
    in_threads(of_threads.size(), [&, place = shared - axes.begin()](std::size_t thread) {
        std::vector<Axis>& mine = of_threads[thread];
        const std::int64_t part = static_cast<std::int64_t>(thread);
        const std::int64_t begin = whole.length * part / parts, end = whole.length * (part + 1) / parts;
        mine[static_cast<std::size_t>(place)].length = end - begin;
        add_squares(code, x + begin * whole.step, sums + begin * whole.sum_step, mine.data(), mine.size());
    });
}

inline double greatest_of(char code, const char* x, std::size_t count) {
    switch (code) {
        case FLOAT64: {
            const std::uint64_t bits = greatest64(as<std::uint64_t>(x), count);
            double value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        case FLOAT32:
            return as_float(greatest32(as<std::uint32_t>(x), count));
        case BFLOAT16:
            return BFloat16::load(greatest16(as<std::uint16_t>(x), count));
        case FLOAT16:
            return Float16::load(greatest16(as<std::uint16_t>(x), count));
        default:
            reject_code(code);
    }
}

// The greater of two magnitudes; NaN if there is any.
inline double greater(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

inline double greatest(const std::vector<Run>& runs, std::size_t threads) {
    std::vector<double> found(threads_for(total_of(runs), threads));
    in_pieces(runs, found.size(), false, [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t thread) {
        for_numbers(runs[i], begin, end, [&](const char* x, std::size_t count) {
            found[thread] = greater(found[thread], greatest_of(runs[i].code, x, count));
        });
    });
    double result = 0;
    for (double value : found) result = greater(result, value);
    return result;
}

// -- what is written

// Calls compute(run, code, x, out, count) for all numbers of `from`, and what it writes goes to the same places of `to`,
// which may be `from`.
template <class Compute>
void map(const std::vector<Run>& from, const std::vector<Run>& to, std::size_t threads, const Compute& compute) {
    const auto work = [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t) {
        const Run &x = from[i], &out = to[i];
        const std::size_t size = size_of(x.code);
        if (x.in_a_row() && out.in_a_row())
            return compute(i, x.code, x.data + begin * size, out.data + begin * size, end - begin);
        Room read, written;
        for (; begin < end; begin += BLOCK) {
            const std::size_t count = std::min(BLOCK, end - begin);
            char* room = out.in_a_row() ? out.data + begin * size : reinterpret_cast<char*>(written.data());
            compute(i, x.code, numbers_of(x, begin, count, read), room, count);
            if (!out.in_a_row())
                (size == 8 ? scatter<8> : size == 4 ? scatter<4> : scatter<2>)(out, begin, count, room);
        }
    };
    in_pieces(from, threads_for(total_of(from), threads), true, work);
}

inline void copy(const std::vector<Run>& from, const std::vector<Run>& to, std::size_t threads) {
    map(from, to, threads, [](std::size_t, char code, const char* x, char* out, std::size_t count) {
        std::memmove(out, x, count * size_of(code));
    });
}

struct Coefficient {
    double wide;
    float narrow;
    explicit Coefficient(double value) : wide(value), narrow(narrowed(value)) {}
};

inline void scale_numbers(char code, const char* x, char* out, std::size_t count, const Coefficient& coef) {
    const float narrow = coef.narrow;
    switch (code) {
        case FLOAT64:
            return scale_float64(as<double>(x), as<double>(out), count, coef.wide);
        case FLOAT32:
            return scale_float32(as<float>(x), as<float>(out), count, narrow);
        case BFLOAT16:
            return scale_bfloat16(as<std::uint16_t>(x), as<std::uint16_t>(out), count, narrow);
        case FLOAT16:
            return scale_float16(as<std::uint16_t>(x), as<std::uint16_t>(out), count, narrow);
        default:
            reject_code(code);
    }
}

// By 1 it is a copy: no bit of a NaN changes.
inline void scale(const std::vector<Run>& from, const std::vector<Run>& to, double coef, std::size_t threads) {
    if (coef == 1) return copy(from, to, threads);
    map(from, to, threads, [rounded = Coefficient(coef)](std::size_t, char code, const char* x, char* out, std::size_t count) {
        scale_numbers(code, x, out, count, rounded);
    });
}

// Each run by a coefficient of its own, none of which is 1.
inline void scale_each(const std::vector<Run>& from, const std::vector<Run>& to, const std::vector<double>& coefs,
                       std::size_t threads) {
    const std::vector<Coefficient> rounded(coefs.begin(), coefs.end());
    map(from, to, threads, [&](std::size_t i, char code, const char* x, char* out, std::size_t count) {
        scale_numbers(code, x, out, count, rounded[i]);
    });
}

// A bound in each of the formats, in the order of CODES.
using Bounds = std::array<double, 4>;

inline void clamp(const std::vector<Run>& from, const std::vector<Run>& to, const Bounds& low, const Bounds& high,
                  std::size_t threads) {
    map(from, to, threads, [&](std::size_t, char code, const char* x, char* out, std::size_t count) {
        const std::size_t format = std::find(CODES, CODES + 4, code) - CODES;
        const float least = narrowed(low[format]), most = narrowed(high[format]);
        switch (code) {
            case FLOAT64:
                return clamp_float64(as<double>(x), as<double>(out), count, low[format], high[format]);
            case FLOAT32:
                return clamp_float32(as<float>(x), as<float>(out), count, least, most);
            case BFLOAT16:
                return clamp_bfloat16(as<std::uint16_t>(x), as<std::uint16_t>(out), count, least, most);
            case FLOAT16:
                return clamp_float16(as<std::uint16_t>(x), as<std::uint16_t>(out), count, least, most);
            default:
                reject_code(code);
        }
    });
}

}  // namespace clip
