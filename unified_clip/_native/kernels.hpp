// Kernels over numbers in a row: sums of a block, exact sums, the greatest magnitude, scaling, clamping.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "accumulator.hpp"

// One body, compiled for wider vectors too; the loader picks. Elsewhere the compiler's baseline has to do: GCC 11 cannot
// tell these levels apart, and Clang 14 compiles the default alone. `make sanitize` defines it to be nothing.
#if defined(CLIP_WIDE)
#elif defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && __GNUC__ >= 12
#define CLIP_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLIP_WIDE
#endif

#ifdef _MSC_VER
#pragma fp_contract(off)  // as -ffp-contract=off
#endif

namespace clip {

constexpr std::size_t BLOCK = 4096;  // of unified_clip/_core/exact.py: the most numbers that are added in float64
constexpr std::size_t LANES = 32;

// A number in memory that need not be aligned.
template <class T>
struct Unaligned {
    char bytes[sizeof(T)];

    operator T() const {
        T value;
        std::memcpy(&value, bytes, sizeof value);
        return value;
    }
    void operator=(T value) { std::memcpy(bytes, &value, sizeof value); }
};

// -- number formats: how a stored number becomes one to compute with, and back

inline float as_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

struct Float32 {
    using Stored = Unaligned<float>;
    static float load(float x) { return x; }
    static float store(float x) { return x; }
};

struct BFloat16 {
    using Stored = Unaligned<std::uint16_t>;
    static float load(std::uint16_t x) { return as_float(std::uint32_t(x) << 16); }
    static std::uint16_t store(float x) {
        const std::uint32_t bits = bits_of(x);
        const std::uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        return static_cast<std::uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? (bits >> 16 | 0x40) : rounded);
    }
};

struct Float16 {
    using Stored = Unaligned<std::uint16_t>;
    static float load(std::uint16_t x) {
        const std::uint32_t magnitude = std::uint32_t(x & 0x7FFF) << 13, sign = std::uint32_t(x & 0x8000) << 16;
        const std::uint32_t scaled = bits_of(as_float(magnitude) * 0x1p112f);  // subnormal numbers come out right too
        return as_float(sign | ((x & 0x7C00) == 0x7C00 ? magnitude | 0x7F800000 : scaled));
    }
    static std::uint16_t store(float x) {
        const std::uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
        // Below 2^-14, adding 0.5 leaves the rounded multiple of 2^-24 in the last bits.
        const std::uint32_t small = bits_of(as_float(magnitude) + 0.5f) - bits_of(0.5f);
        const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
        const std::uint32_t special = magnitude > 0x7F800000 ? 0x7E00 : 0x7C00;
        const std::uint32_t finite = magnitude < 0x38800000 ? small : normal;
        return static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000 ? special : finite));
    }
};

struct Float64 {
    using Stored = Unaligned<double>;
    static double load(double x) { return x; }
    static double store(double x) { return x; }
};

// -- sums of at most BLOCK numbers in float64, where each term is exact

#define CLIP_BLOCK_SUM(NAME, FORMAT, TERM)                                        \
    CLIP_WIDE inline double NAME(const FORMAT::Stored* x, std::size_t count) {    \
        double lanes[LANES] = {};                                                 \
        std::size_t i = 0;                                                        \
        for (; i + LANES <= count; i += LANES)                                    \
            for (std::size_t lane = 0; lane < LANES; ++lane) {                    \
                const double v = static_cast<double>(FORMAT::load(x[i + lane]));  \
                lanes[lane] += TERM;                                              \
            }                                                                     \
        for (; i < count; ++i) {                                                  \
            const double v = static_cast<double>(FORMAT::load(x[i]));             \
            lanes[0] += TERM;                                                     \
        }                                                                         \
        for (std::size_t half = LANES / 2; half; half /= 2)                       \
            for (std::size_t lane = 0; lane < half; ++lane)                       \
                lanes[lane] += lanes[lane + half];                                \
        return lanes[0];                                                          \
    }

CLIP_BLOCK_SUM(squares_float32, Float32, v* v)
CLIP_BLOCK_SUM(squares_bfloat16, BFloat16, v* v)
CLIP_BLOCK_SUM(squares_float16, Float16, v* v)
CLIP_BLOCK_SUM(magnitudes_float32, Float32, std::fabs(v))
CLIP_BLOCK_SUM(magnitudes_bfloat16, BFloat16, std::fabs(v))
CLIP_BLOCK_SUM(magnitudes_float16, Float16, std::fabs(v))
#undef CLIP_BLOCK_SUM

// -- squares that are added to a sum for each column

#define CLIP_ADD_SQUARES(NAME, FORMAT)                                                            \
    CLIP_WIDE inline void NAME(const FORMAT::Stored* x, double* sums, std::size_t count) {        \
        for (std::size_t i = 0; i < count; ++i) {                                                 \
            const double v = static_cast<double>(FORMAT::load(x[i]));                             \
            sums[i] += v * v;                                                                     \
        }                                                                                         \
    }

CLIP_ADD_SQUARES(add_squares_float32, Float32)
CLIP_ADD_SQUARES(add_squares_bfloat16, BFloat16)
CLIP_ADD_SQUARES(add_squares_float16, Float16)
#undef CLIP_ADD_SQUARES

// -- sums of at most PAIR_BLOCK numbers as the sum of two float64, off by less than 2^-80 of themselves
//
// Ogita, Rump and Oishi, "Accurate sum and dot product", 2005: what each product and each addition loses is a float64,
// and those are added up too. A lane has n <= 2048 terms; its second sum, at most (n + 1) u of the first, loses 2n u of
// itself, with u = 2^-53. The caller makes sure that no product overflowed, and that none that counts underflowed.

constexpr std::size_t PAIR_BLOCK = 16 * BLOCK;

struct Pair {
    double sum, rest;
};

#define CLIP_PAIR_SUM(NAME, FORMAT, TERM, LOST)                                     \
    CLIP_WIDE inline Pair NAME(const FORMAT::Stored* x, std::size_t count) {        \
        double sums[LANES] = {}, rests[LANES] = {};                                 \
        const auto add = [](double& sum, double& rest, double term, double lost) {  \
            const double total = sum + term, part = total - sum;                    \
            rest += lost + ((sum - (total - part)) + (term - part));                \
            sum = total;                                                            \
        };                                                                          \
        std::size_t i = 0;                                                          \
        for (; i + LANES <= count; i += LANES)                                      \
            for (std::size_t lane = 0; lane < LANES; ++lane) {                      \
                const double v = static_cast<double>(FORMAT::load(x[i + lane]));    \
                const double term = TERM;                                           \
                add(sums[lane], rests[lane], term, LOST);                           \
            }                                                                       \
        for (; i < count; ++i) {                                                    \
            const double v = static_cast<double>(FORMAT::load(x[i]));               \
            const double term = TERM;                                               \
            add(sums[i % LANES], rests[i % LANES], term, LOST);                     \
        }                                                                           \
        for (std::size_t half = LANES / 2; half; half /= 2)                         \
            for (std::size_t lane = 0; lane < half; ++lane)                         \
                add(sums[lane], rests[lane], sums[lane + half], rests[lane + half]); \
        return {sums[0], rests[0]};                                                 \
    }

CLIP_PAIR_SUM(square_pairs_float64, Float64, v* v, std::fma(v, v, -term))
CLIP_PAIR_SUM(square_pairs_float32, Float32, v* v, 0.0)
CLIP_PAIR_SUM(square_pairs_bfloat16, BFloat16, v* v, 0.0)
CLIP_PAIR_SUM(square_pairs_float16, Float16, v* v, 0.0)
CLIP_PAIR_SUM(magnitude_pairs_float64, Float64, std::fabs(v), 0.0)
CLIP_PAIR_SUM(magnitude_pairs_float32, Float32, std::fabs(v), 0.0)
CLIP_PAIR_SUM(magnitude_pairs_bfloat16, BFloat16, std::fabs(v), 0.0)
CLIP_PAIR_SUM(magnitude_pairs_float16, Float16, std::fabs(v), 0.0)
#undef CLIP_PAIR_SUM

// -- exact sums, number by number

inline void add_square(Accumulator& sum, double value) {
    const std::uint64_t bits = bits_of(value) & 0x7FFFFFFFFFFFFFFF;
    int exponent = static_cast<int>(bits >> 52);
    std::uint64_t mantissa = bits & 0xFFFFFFFFFFFFF;
    if (exponent == 0x7FF) return sum.add_special(mantissa != 0);
    if (bits == 0) return;
    if (exponent)
        mantissa |= std::uint64_t(1) << 52;
    else
        exponent = 1;
    const int unit = 2 * (exponent - 1);  // 2^(2 * (exponent - 1075) + UNIT)
    const std::uint64_t high = mantissa >> 27, low = mantissa & 0x7FFFFFF;
    sum.add(low * low, unit);
    sum.add(high * low, unit + 28);
    sum.add(high * high, unit + 54);
}

template <class Format>
void add_exactly(Accumulator& sum, const typename Format::Stored* x, std::size_t count, bool squared) {
    for (std::size_t i = 0; i < count; ++i) {
        const double value = static_cast<double>(Format::load(x[i]));
        if (squared)
            add_square(sum, value);
        else
            sum.add(std::fabs(value));
    }
}

// -- the greatest magnitude, by bit patterns, in whose order NaN is the greatest

#define CLIP_GREATEST(NAME, BITS, MASK)                                       \
    CLIP_WIDE inline BITS NAME(const Unaligned<BITS>* x, std::size_t count) { \
        BITS lanes[LANES] = {};                                               \
        std::size_t i = 0;                                                    \
        for (; i + LANES <= count; i += LANES)                                \
            for (std::size_t lane = 0; lane < LANES; ++lane) {                \
                const BITS v = x[i + lane] & BITS(MASK);                      \
                lanes[lane] = v > lanes[lane] ? v : lanes[lane];              \
            }                                                                 \
        BITS greatest = 0;                                                    \
        for (; i < count; ++i) {                                              \
            const BITS v = x[i] & BITS(MASK);                                 \
            greatest = v > greatest ? v : greatest;                           \
        }                                                                     \
        for (BITS lane : lanes) greatest = lane > greatest ? lane : greatest; \
        return greatest;                                                      \
    }

CLIP_GREATEST(greatest16, std::uint16_t, 0x7FFF)
CLIP_GREATEST(greatest32, std::uint32_t, 0x7FFFFFFF)
CLIP_GREATEST(greatest64, std::uint64_t, 0x7FFFFFFFFFFFFFFF)
#undef CLIP_GREATEST

// -- scaling: one multiplication, in float32 for 16-bit numbers; `out` may be `x`

#define CLIP_SCALE(NAME, FORMAT, NUMBER)                                                                      \
    CLIP_WIDE inline void NAME(const FORMAT::Stored* x, FORMAT::Stored* out, std::size_t count, NUMBER coef) { \
        for (std::size_t i = 0; i < count; ++i) out[i] = FORMAT::store(FORMAT::load(x[i]) * coef);            \
    }

CLIP_SCALE(scale_float32, Float32, float)
CLIP_SCALE(scale_bfloat16, BFloat16, float)
CLIP_SCALE(scale_float16, Float16, float)
CLIP_SCALE(scale_float64, Float64, double)
#undef CLIP_SCALE

// -- clamping: what lies beyond a bound becomes that bound; NaN stays

#define CLIP_CLAMP(NAME, FORMAT, NUMBER)                                                                            \
    CLIP_WIDE inline void NAME(const FORMAT::Stored* x, FORMAT::Stored* out, std::size_t count, NUMBER low,         \
                               NUMBER high) {                                                                       \
        const auto least = FORMAT::store(low), most = FORMAT::store(high);                                          \
        for (std::size_t i = 0; i < count; ++i) {                                                                   \
            const NUMBER v = FORMAT::load(x[i]);                                                                    \
            out[i] = v < low ? least : v > high ? most : x[i];                                                      \
        }                                                                                                           \
    }

CLIP_CLAMP(clamp_float32, Float32, float)
CLIP_CLAMP(clamp_bfloat16, BFloat16, float)
CLIP_CLAMP(clamp_float16, Float16, float)
CLIP_CLAMP(clamp_float64, Float64, double)
#undef CLIP_CLAMP

}  // namespace clip
