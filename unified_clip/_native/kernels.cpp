// The kernels of one instruction set. CMake compiles this file once for each set. CLIP_TABLE is the name of the table.
//
// Functions here have internal linkage, and call no inline function of a header. The linker merges inline functions,
// and could keep the copy that only newer processors can run.
#include "kernels.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtypes.hpp"

#ifdef _MSC_VER
#pragma fp_contract(off)  // as -ffp-contract=off
#endif

namespace clip {
namespace {

constexpr std::size_t LANES = 32;    // numbers per step of a loop
constexpr std::size_t CHUNK = 256;   // numbers that are fetched at a time
constexpr std::size_t AHEAD = 1024;  // the distance in bytes from a number to the number that is fetched with it
constexpr std::size_t WAYS = 4;      // places that are read in turn, because one place waits for memory

// -- loops

// Fetch the LANES numbers that are AHEAD of `x` into the cache. Nothing after the `left` remaining numbers is fetched.
template <bool WRITE, class Number>
inline void fetch_ahead(const Number* x, std::size_t left) {
#if defined(__GNUC__) || defined(__clang__)
    if (left < AHEAD / sizeof(Number) + LANES) return;
    for (std::size_t line = 0; line < LANES * sizeof(Number); line += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(x) + AHEAD + line, WRITE, 3);
#else
    (void)x, (void)left;
#endif
}

// Call add(lane, number) for LANES numbers, converted to float64. Neighbours have different lanes.
template <class Dtype, class Add>
inline void add_lanes(const Numbers<Dtype>* x, const Add& add) {
    if constexpr (std::is_same_v<Dtype, BFloat16>) {
        const auto* pairs = reinterpret_cast<const Numbers<BFloat16Pair>*>(x);
        for (std::size_t lane = 0; lane < LANES / 2; ++lane) {
            const std::uint32_t both = pairs[lane];
            add(lane, static_cast<double>(bit_cast<float>(both << 16)));
            add(LANES / 2 + lane, static_cast<double>(bit_cast<float>(both & 0xFFFF0000)));
        }
#ifdef __F16C__
    } else if constexpr (std::is_same_v<Dtype, Float16>) {
        alignas(32) float values[LANES];
        load_halves(x, values, LANES);
        for (std::size_t lane = 0; lane < LANES; ++lane) add(lane, static_cast<double>(values[lane]));
#endif
    } else {
        for (std::size_t lane = 0; lane < LANES; ++lane) add(lane, static_cast<double>(Dtype::load(x[lane])));
    }
}

// Call add(lane, number) for `each` numbers (a multiple of LANES) at each of WAYS places, `stride` numbers apart. The
// numbers are converted to float64. Neighbours have different lanes. Nothing after the `left` remaining numbers is
// fetched.
template <class Dtype, class Add>
inline void for_each(const Numbers<Dtype>* x, std::size_t stride, std::size_t each, std::size_t left, const Add& add) {
    for (std::size_t i = 0; i < each; i += LANES)
        for (std::size_t way = 0; way < WAYS; ++way) {
            const Numbers<Dtype>* here = x + way * stride + i;
            fetch_ahead<false>(here, left - way * stride - i);
            add_lanes<Dtype>(here, add);
        }
}

// The same for `count` numbers at `x`.
template <class Dtype, class Add>
inline void for_each(const Numbers<Dtype>* x, std::size_t count, const Add& add) {
    const std::size_t each = count / (WAYS * LANES) * LANES;
    for_each<Dtype>(x, each, each, count, add);
    for (std::size_t i = WAYS * each; i < count; ++i) add(i % LANES, static_cast<double>(Dtype::load(x[i])));
}

// Call work(begin, end) for all numbers below `count`, CHUNK at a time, at WAYS places in turn.
template <class Work>
inline void for_chunks(std::size_t count, const Work& work) {
    const std::size_t each = count / (WAYS * CHUNK) * CHUNK;
    for (std::size_t begin = 0; begin < each; begin += CHUNK)
        for (std::size_t way = 0; way < WAYS; ++way) work(way * each + begin, way * each + begin + CHUNK);
    for (std::size_t begin = WAYS * each; begin < count; begin += CHUNK)
        work(begin, count - begin < CHUNK ? count : begin + CHUNK);
}

// Write function(number) for each of at most CHUNK numbers. `out` may be `x`.
template <class Dtype, class Function>
inline void apply(const Numbers<Dtype>* x, Numbers<Dtype>* out, std::size_t count, const Function& function) {
#ifdef __clang__  // without this, Clang computes one number at a time if `out` is `x`
#pragma clang loop vectorize(assume_safety)
#endif
    for (std::size_t i = 0; i < count; ++i) out[i] = function(x[i]);
}

// Multiplies a stored number.
template <class Dtype>
struct Product {
    typename Dtype::Number factor;

    typename Dtype::Bits operator()(typename Dtype::Bits bits) const {
        return Dtype::store(Dtype::load(bits) * factor);
    }
};

#ifdef __F16C__
template <>
inline void apply<Float16, Product<Float16>>(const Numbers<Float16>* x, Numbers<Float16>* out, std::size_t count,
                                             const Product<Float16>& product) {
    alignas(32) float values[CHUNK];
    const std::size_t whole = count / HALVES * HALVES;
    load_halves(x, values, whole);
    for (std::size_t i = 0; i < whole; ++i) {
        const auto bits = bit_cast<std::uint32_t>(values[i] * product.factor);
        values[i] = bit_cast<float>((bits & 0x7FFFFFFF) > 0x7F800000 ? bits & 0xFFC00000 : bits);  // as `store`
    }
    store_halves(values, out, whole);
    for (std::size_t i = whole; i < count; ++i) out[i] = product(x[i]);
}
#endif

// Write function(number) for each number, in its stored form. `to` may be `from`.
template <class Dtype, class Function>
inline void transform(const char* from, char* to, std::size_t count, const Function& function) {
    const Numbers<Dtype>* x = numbers<Dtype>(from);
    auto* out = reinterpret_cast<Numbers<Dtype>*>(to);
    for_chunks(count, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; i += LANES) {
            fetch_ahead<true>(out + i, count - i);
            if (from != to) fetch_ahead<false>(x + i, count - i);
        }
        apply<Dtype>(x + begin, out + begin, end - begin, function);
    });
}

// -- sums

enum Power { MAGNITUDES = 1, SQUARES = 2 };

// The square of a number of at most 32 bits is exact in float64, so both ways are equal.
inline void add_square(double& sum, double value) {
#if defined(__FMA__) || defined(__FP_FAST_FMA)
    sum = ::fma(value, value, sum);
#else
    sum += value * value;
#endif
}

// The numbers of a complete BLOCK come from WAYS places.
template <class Dtype, Power POWER>
void block_sums(const char* bytes, std::size_t count, double* sums) {
    const Numbers<Dtype>* x = numbers<Dtype>(bytes);
    constexpr std::size_t EACH = BLOCK / WAYS;
    const std::size_t blocks = count / BLOCK, rest = blocks * BLOCK;
    for (std::size_t block = 0; block * BLOCK < count; ++block) {
        double lanes[LANES] = {};
        const auto add = [&](std::size_t lane, double value) {
            if (POWER == SQUARES)
                add_square(lanes[lane], value);
            else
                lanes[lane] += std::fabs(value);
        };
        if (block < blocks)
            for_each<Dtype>(x + block * EACH, blocks * EACH, EACH, count - block * EACH, add);
        else
            for_each<Dtype>(x + rest, count - rest, add);
        for (std::size_t half = LANES / 2; half; half /= 2)
            for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
        *sums++ = lanes[0];
    }
}

template <class Dtype>
void add_squares(const char* bytes, std::size_t count, double* sums) {
    const Numbers<Dtype>* x = numbers<Dtype>(bytes);
    for (std::size_t i = 0; i < count; ++i) add_square(sums[i], static_cast<double>(Dtype::load(x[i])));
}

// Ogita, Rump and Oishi, "Accurate sum and dot product", 2005: the rounding errors of a product and an addition are
// float64 numbers, and are added separately. A lane adds n <= 2048 terms. The second sum is at most (n + 1) u of the
// first, with a relative error of 2n u, where u is 2^-53. The caller checks that no product overflows, and that
// underflow does not matter.
template <class Dtype, Power POWER>
CompensatedSum compensated_sum(const char* bytes, std::size_t count) {
    static_assert(PIECE / LANES <= 2048, "the bound is for at most 2048 terms per lane");
    double sums[LANES] = {}, rests[LANES] = {};
    const auto add = [&](std::size_t lane, double term, double error) {
        const double sum = sums[lane], total = sum + term, part = total - sum;
        rests[lane] += error + ((sum - (total - part)) + (term - part));
        sums[lane] = total;
    };
    for_each<Dtype>(numbers<Dtype>(bytes), count, [&](std::size_t lane, double value) {
        if (POWER == MAGNITUDES) return add(lane, std::fabs(value), 0.0);
        const double square = value * value;
        add(lane, square, sizeof(typename Dtype::Bits) == 8 ? ::fma(value, value, -square) : 0.0);
    });
    for (std::size_t half = LANES / 2; half; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) add(lane, sums[lane + half], rests[lane + half]);
    return {sums[0], rests[0]};
}

template <class Dtype>
void widen(const char* bytes, std::size_t count, double* out) {
    const Numbers<Dtype>* x = numbers<Dtype>(bytes);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<double>(Dtype::load(x[i]));
}

// Compare bits without the sign. They have the order of the magnitudes, and NaN is the largest.
template <class Dtype>
double max_abs(const char* bytes, std::size_t count) {
    using Bits = typename Dtype::Bits;
    constexpr Bits MAGNITUDE = static_cast<Bits>(~Bits(0)) >> 1;
    const Numbers<Dtype>* x = numbers<Dtype>(bytes);
    Bits lanes[LANES] = {}, largest = 0;
    for_chunks(count, [&](std::size_t begin, std::size_t end) {
        std::size_t i = begin;
        for (; i + LANES <= end; i += LANES) {
            fetch_ahead<false>(x + i, count - i);
            for (std::size_t lane = 0; lane < LANES; ++lane) {
                const Bits magnitude = x[i + lane] & MAGNITUDE;
                lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
            }
        }
        for (; i < end; ++i) {
            const Bits magnitude = x[i] & MAGNITUDE;
            largest = magnitude > largest ? magnitude : largest;
        }
    });
    for (Bits magnitude : lanes) largest = magnitude > largest ? magnitude : largest;
    return static_cast<double>(Dtype::load(largest));
}

// -- results

// `transform` for bfloat16, two numbers at a time, so that no instruction moves 16 bits to 32 or back. function(number)
// returns the bits of a float32, whose lower half is dropped.
template <class Function>
inline void transform_pairs(const char* from, char* to, std::size_t count, const Function& function) {
    constexpr std::uint32_t HIGH = 0xFFFF0000;
    const std::size_t pairs = count / 2, done = pairs * sizeof(BFloat16Pair::Bits);
    transform<BFloat16Pair>(from, to, pairs, [&](std::uint32_t both) {
        return function(bit_cast<float>(both << 16)) >> 16 | (function(bit_cast<float>(both & HIGH)) & HIGH);
    });
    transform<BFloat16>(from + done, to + done, count % 2, [&](BFloat16::Bits bits) {
        return static_cast<BFloat16::Bits>(function(BFloat16::load(bits)) >> 16);
    });
}

template <class Dtype>
void scale(const char* x, char* out, std::size_t count, double coef) {
    const auto factor = static_cast<typename Dtype::Number>(coef);
    transform<Dtype>(x, out, count, Product<Dtype>{factor});
}

// The lower half of a NaN is 0 in all operands, so it is 0 in the product, and rounding cannot change the upper half.
// Bits are compared, because GCC 12 replaces `x == x ? x : y` by x.
template <>
void scale<BFloat16>(const char* x, char* out, std::size_t count, double coef) {
    const auto bits = bit_cast<std::uint32_t>(static_cast<float>(coef));
    const float factor = bit_cast<float>((bits & 0x7FFFFFFF) > 0x7F800000 ? bits & 0xFFFF0000 : bits);
    transform_pairs(x, out, count,
                    [=](float value) { return BFloat16::rounded(bit_cast<std::uint32_t>(value * factor)); });
}

template <class Dtype>
void clamp(const char* x, char* out, std::size_t count, double low, double high) {
    using Bits = typename Dtype::Bits;
    const auto least = static_cast<typename Dtype::Number>(low), most = static_cast<typename Dtype::Number>(high);
    const Bits least_bits = Dtype::store(least), most_bits = Dtype::store(most);
    transform<Dtype>(x, out, count, [=](Bits bits) {
        const auto value = Dtype::load(bits);
        return value < least ? least_bits : value > most ? most_bits : bits;
    });
}

template <>
void clamp<BFloat16>(const char* x, char* out, std::size_t count, double low, double high) {
    const auto least = static_cast<float>(low), most = static_cast<float>(high);
    transform_pairs(x, out, count, [=](float value) {
        return bit_cast<std::uint32_t>(value < least ? least : value > most ? most : value);
    });
}

template <class Dtype, bool EXACT_SQUARES = sizeof(typename Dtype::Number) == 4>
constexpr Kernels kernels_of() {
    return {Dtype::CODE,
            sizeof(typename Dtype::Bits),
            EXACT_SQUARES ? block_sums<Dtype, MAGNITUDES> : nullptr,
            EXACT_SQUARES ? block_sums<Dtype, SQUARES> : nullptr,
            EXACT_SQUARES ? add_squares<Dtype> : nullptr,
            compensated_sum<Dtype, MAGNITUDES>,
            compensated_sum<Dtype, SQUARES>,
            widen<Dtype>,
            max_abs<Dtype>,
            scale<Dtype>,
            clamp<Dtype>};
}

}  // namespace

constexpr Kernels CLIP_TABLE[DTYPES] = {kernels_of<Float16>(), kernels_of<BFloat16>(), kernels_of<Float32>(),
                                        kernels_of<Float64>()};

}  // namespace clip
