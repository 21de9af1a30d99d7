// Correctly rounded norms. No Python here. unified_clip/_core/exact.py does the same for sums that Python adds up.
#pragma once

#include <optional>

#include "reduce.hpp"

namespace clip {

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
