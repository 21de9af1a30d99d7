// Sums, largest magnitudes and correctly rounded norms of lists, and sums of slices. No Python here. For sums that Python
// adds up, unified_clip/_core/exact.py rounds norms in the same way.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

#include "accumulator.hpp"
#include "span.hpp"

namespace clip {

// The squares of float64 numbers are not exact in a float64 sum.
inline void reject_float64(const Spans& spans) {
    for (const Span& span : spans)
        if (!span.kernels->square_sums) throw std::invalid_argument("float64 has no block sums");
}

// The relative error of a sum: at most 2^-40 (BLOCKS), at most 2^-80 (COMPENSATED), or 0.
enum class Method { BLOCKS, COMPENSATED, EXACT };

class PartialSum {
   public:
    PartialSum(int p, Method method) : squares_(p == 2), method_(method) {}

    // Add at most a PIECE.
    void add(const Kernels& kernels, const char* x, std::size_t count) {
        if (method_ == Method::BLOCKS)
            add_blocks(kernels, x, count);
        else if (method_ == Method::COMPENSATED)
            add_compensated(kernels, x, count);
        else
            add_exactly(kernels, x, count);
    }

    Accumulator& total() {
        flush();
        return total_;
    }

   private:
    void add_blocks(const Kernels& kernels, const char* x, std::size_t count) {
        double sums[PIECE / BLOCK];
        (squares_ ? kernels.square_sums : kernels.magnitude_sums)(x, count, sums);
        for (std::size_t i = 0; i * BLOCK < count; ++i) {
            const std::size_t here = std::min(BLOCK, count - i * BLOCK);
            if (in_block_ + here > BLOCK) flush();
            block_ += sums[i];
            in_block_ += here;
        }
    }

    void add_compensated(const Kernels& kernels, const char* x, std::size_t count) {
        constexpr double LEAST = 0x1p-850;  // in smaller sums, float64 products lose too much below 2^-1074
        const auto [sum, rest] = (squares_ ? kernels.compensated_squares : kernels.compensated_magnitudes)(x, count);
        if (!(sum >= LEAST && sum <= std::numeric_limits<double>::max())) return add_exactly(kernels, x, count);
        total_.add(sum);
        total_.add(rest);
    }

    void add_exactly(const Kernels& kernels, const char* x, std::size_t count) {
        std::array<double, 256> values;
        for (std::size_t begin = 0; begin < count; begin += values.size()) {
            const std::size_t here = std::min(values.size(), count - begin);
            kernels.widen(x + begin * kernels.size, here, values.data());
            for (std::size_t i = 0; i < here; ++i)
                squares_ ? total_.add_square(values[i]) : total_.add(std::fabs(values[i]));
        }
    }

    // Add the sums of short spans, which share a block.
    void flush() {
        if (in_block_) total_.add(block_);
        block_ = 0;
        in_block_ = 0;
    }

    const bool squares_;
    const Method method_;
    Accumulator total_;
    double block_ = 0;
    std::size_t in_block_ = 0;
};

inline Accumulator power_sum(const Spans& spans, int p, Method method, std::size_t threads) {
    if (p != 1 && p != 2) throw std::invalid_argument("p is 1 or 2");
    if (method == Method::BLOCKS) reject_float64(spans);
    std::vector<PartialSum> partial(threads_for(total_count(spans), threads), PartialSum(p, method));
    for_parts(spans, partial.size(), false, [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t thread) {
        for_numbers(spans[i], begin, end, [&](const char* x, std::size_t count) {
            partial[thread].add(*spans[i].kernels, x, count);
        });
    });
    for (std::size_t i = 1; i < partial.size(); ++i) partial[0].total().merge(partial[i].total());
    return partial[0].total();
}

// Return the sum of squares of each span, and a bound on its relative error. Throw for float64.
inline std::pair<std::vector<double>, std::vector<double>> square_sums(const Spans& spans, std::size_t threads) {
    reject_float64(spans);
    threads = threads_for(total_count(spans), threads);
    std::vector<std::vector<double>> partial(threads, std::vector<double>(spans.size()));
    for_parts(spans, threads, false, [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t thread) {
        for_numbers(spans[i], begin, end, [&](const char* x, std::size_t count) {
            double sums[PIECE / BLOCK];
            spans[i].kernels->square_sums(x, count, sums);
            for (std::size_t block = 0; block * BLOCK < count; ++block) partial[thread][i] += sums[block];
        });
    });
    std::vector<double> rel_error;
    for (std::size_t i = 0; i < spans.size(); ++i) {
        for (std::size_t thread = 1; thread < threads; ++thread) partial[0][i] += partial[thread][i];
        // An error for each block, and for each addition of blocks. There are no more additions than this.
        const double additions = static_cast<double>(spans[i].count / BLOCK + spans[i].count / PIECE + threads + 4);
        rel_error.push_back(0x1p-40 + additions * 0x1p-52);
    }
    return {partial[0], rel_error};
}

// Return the larger magnitude, or NaN if either is NaN.
inline double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

inline double max_abs(const Spans& spans, std::size_t threads) {
    std::vector<double> partial(threads_for(total_count(spans), threads));
    for_parts(spans, partial.size(), false, [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t thread) {
        for_numbers(spans[i], begin, end, [&](const char* x, std::size_t count) {
            partial[thread] = larger(partial[thread], spans[i].kernels->max_abs(x, count));
        });
    });
    double result = 0;
    for (double value : partial) result = larger(result, value);
    return result;
}

// -- slices

// An axis of an array: the distance between elements in bytes, and the distance between their sums. This second
// distance is 0 if the elements belong to one slice.
struct Axis {
    std::int64_t length, step, sum_step;
};

// Sort axes in the order of the memory, the shortest steps last. Merge axes that one axis can replace.
inline std::vector<Axis> merged(std::vector<Axis> axes) {
    const auto before = [](const Axis& a, const Axis& b) { return std::abs(a.step) > std::abs(b.step); };
    std::stable_sort(axes.begin(), axes.end(), before);
    std::vector<Axis> result;
    for (const Axis& axis : axes) {
        if (axis.length == 1) continue;
        const Axis* outer = result.empty() ? nullptr : &result.back();
        if (outer && outer->step == axis.step * axis.length && outer->sum_step == axis.sum_step * axis.length)
            result.back() = {outer->length * axis.length, axis.step, axis.sum_step};
        else
            result.push_back(axis);
    }
    if (result.empty()) result.push_back({1, 0, 0});
    return result;
}

// Add the squares of an array with these axes to the sums.
inline void add_squares(const Kernels& kernels, const char* x, double* sums, const Axis* axes, std::size_t count) {
    const auto [length, step, sum_step] = *axes;
    if (count > 1) {
        for (std::int64_t i = 0; i < length; ++i)
            add_squares(kernels, x + i * step, sums + i * sum_step, axes + 1, count - 1);
    } else if (step == static_cast<std::int64_t>(kernels.size) && sum_step == 0) {
        for (std::int64_t i = 0; i < length; i += PIECE) {
            const auto here = static_cast<std::size_t>(std::min<std::int64_t>(PIECE, length - i));
            double blocks[PIECE / BLOCK];
            kernels.square_sums(x + i * step, here, blocks);
            for (std::size_t block = 0; block * BLOCK < here; ++block) *sums += blocks[block];
        }
    } else if (step == static_cast<std::int64_t>(kernels.size) && sum_step == 1) {
        kernels.add_squares(x, static_cast<std::size_t>(length), sums);
    } else {
        for (std::int64_t i = 0; i < length; ++i) kernels.add_squares(x + i * step, 1, sums + i * sum_step);
    }
}

// Add the squares of an array to a float64 sum for each slice. The array must not be float64.
inline void slice_sums(const Kernels& kernels, const char* x, double* sums, std::vector<Axis> axes,
                       std::size_t threads) {
    axes = merged(std::move(axes));
    // Threads share the longest axis along which sums differ.
    const auto longer = [](const Axis& a, const Axis& b) {
        return (a.sum_step ? a.length : 0) < (b.sum_step ? b.length : 0);
    };
    const auto shared = std::max_element(axes.begin(), axes.end(), longer);
    const Axis whole = *shared;
    std::size_t total = 1;
    for (const Axis& axis : axes) total *= static_cast<std::size_t>(axis.length);
    threads = threads_for(total, threads);
    const std::int64_t parts = whole.sum_step ? std::min(whole.length, static_cast<std::int64_t>(threads)) : 1;
    std::vector<std::vector<Axis>> axes_of_parts(static_cast<std::size_t>(parts), axes);
    for_pieces(axes_of_parts.size(), threads, false, [&](std::size_t piece, std::size_t) {
        std::vector<Axis>& mine = axes_of_parts[piece];
        const auto part = static_cast<std::int64_t>(piece);
        const std::int64_t begin = whole.length * part / parts, end = whole.length * (part + 1) / parts;
        mine[static_cast<std::size_t>(shared - axes.begin())].length = end - begin;
        add_squares(kernels, x + begin * whole.step, sums + begin * whole.sum_step, mine.data(), mine.size());
    });
}

// -- norms

// A floating-point format: its significant bits, the exponent of its smallest number, and the exponent of the first
// power of two that overflows.
struct Format {
    int precision, lowest, limit;
};
constexpr Format FLOAT32{24, -149, 128}, FLOAT64{53, -1074, 1024};

// Return (number * 2^exponent)^p in units of 2^-(UNIT + 2). `number` is at most 2^54 + 1, and `exponent` at least
// -1075.
inline Accumulator quarter_units(std::uint64_t number, int exponent, int p) {
    Accumulator power;
    const int unit = UNIT + 2 + p * exponent;
    if (p == 1) {
        power.add(number, unit);
        return power;
    }
    const std::uint64_t high = number >> 27, low = number & 0x7FFFFFF;
    power.add(low * low, unit);
    power.add(high * low, unit + 28);
    power.add(high * high, unit + 54);
    return power;
}

// Return the p-th root of an exact sum, rounded to nearest, ties to even. p is 1 or 2.
inline double rounded_root(const Accumulator& sum, int p, const Format& format) {
    if (sum.nan) return std::numeric_limits<double>::quiet_NaN();
    if (sum.infinite) return std::numeric_limits<double>::infinity();
    const auto [fraction, unit] = sum.leading();
    if (fraction == 0) return 0;
    Accumulator quarters;
    for (int i = 0; i < 4; ++i) quarters.merge(sum);
    const auto sum_against = [&](std::uint64_t number, int exponent) {
        return compare(quarters, quarter_units(number, exponent, p));
    };
    int top;  // the root is about fraction * 2^top
    const double root = std::frexp(p == 2 ? std::sqrt(fraction) : fraction, &top);
    top += unit / p;
    int last = std::max(top - format.precision, format.lowest);  // the exponent of the result's last bit
    auto number = static_cast<std::uint64_t>(std::ldexp(root, top - last));
    while (sum_against(number, last) < 0) --number;
    while (sum_against(number + 1, last) >= 0) ++number;
    if (number >> format.precision) number >>= 1, ++last;
    if (!(number >> (format.precision - 1)) && last > format.lowest) {  // just below a power of two
        --last, number = 2 * number + 1;
        if (sum_against(number, last) < 0) --number;
    }
    const int against_middle = sum_against(2 * number + 1, last - 1);
    if (against_middle > 0 || (against_middle == 0 && number % 2)) ++number;
    const double result = std::ldexp(static_cast<double>(number), last);
    return result < std::ldexp(1.0, format.limit) ? result : std::numeric_limits<double>::infinity();
}

// Return the root of a fast sum, or nothing if the error bound allows two results (Ziv's test).
inline std::optional<double> certain_root(const Accumulator& sum, int p, Method method, const Format& format) {
    if (method == Method::EXACT || sum.nan || sum.infinite) return rounded_root(sum, p, format);
    const auto [fraction, unit] = sum.leading();
    if (fraction == 0) return rounded_root(sum, p, format);
    if (method == Method::BLOCKS) {  // an error of 2^-40, and 2^-50 for the operations below
        const double root = p == 2 ? std::sqrt(fraction) : fraction;
        const auto rounded = [&, exponent = unit / p](double factor) {
            volatile double wide = std::ldexp(root * factor, exponent);  // `volatile` keeps the conversion here
            return static_cast<float>(wide);
        };
        const float low = rounded(1 - 0x1p-39), high = rounded(1 + 0x1p-39);
        return low == high ? std::optional<double>(low) : std::nullopt;
    }
    int top;  // the error of the sum is below 2^(top - 80)
    std::frexp(fraction, &top);
    const int slack = std::max(0, top + unit + UNIT - 80 + 1);
    Accumulator least = sum, most = sum;
    least.add(1, slack, -1);
    most.add(1, slack);
    const double low = rounded_root(least, p, format), high = rounded_root(most, p, format);
    return low == high ? std::optional<double>(low) : std::nullopt;
}

// Return the p-norm, rounded to float64 if `is_float64`, else to float32. p is 1 or 2. Without `is_float64`, no number
// is a float64.
inline double norm(const Spans& spans, int p, bool is_float64, std::size_t threads) {
    const Ieee ieee;
    const Format& format = is_float64 ? FLOAT64 : FLOAT32;
    const Method fast = is_float64 ? Method::COMPENSATED : Method::BLOCKS;
    if (const auto n = certain_root(power_sum(spans, p, fast, threads), p, fast, format)) return *n;
    return rounded_root(power_sum(spans, p, Method::EXACT, threads), p, format);
}

// Return min(1, threshold / (n + eps)), as `coefficient` in unified_clip/_core/rule.py does. A threshold of inf gives 1.
inline double coefficient(double n, double threshold, double eps, bool infinite_norm_gives_nan) {
    const double inf = std::numeric_limits<double>::infinity(), denominator = n + eps;
    if (threshold == inf || denominator <= threshold) return 1;
    if (infinite_norm_gives_nan && n == inf) return std::numeric_limits<double>::quiet_NaN();
    return (threshold + 0.0) / denominator;  // -0.0 would change signs
}

// For every batch, write the norm over all spans, or a norm for each span. A span has one part per batch, in order.
inline void write_norms(const Spans& spans, std::size_t batches, int p, bool per_tensor, std::size_t threads,
                        double* out) {
    const auto has_float64 = [](const Span& span) { return span.kernels->code == 'd'; };
    const bool is_float64 = std::any_of(spans.begin(), spans.end(), has_float64);
    for (std::size_t batch = 0; batch < batches; ++batch) {
        Spans parts = spans;
        for (Span& part : parts) {
            part.count /= batches;
            part.data = part.at(batch * part.count);
        }
        if (!per_tensor) {
            *out++ = norm(parts, p, is_float64, threads);
            continue;
        }
        for (const Span& part : parts) *out++ = norm({part}, p, has_float64(part), threads);
    }
}

}  // namespace clip
