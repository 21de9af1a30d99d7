// The dtypes of the kernels: the bits in memory, and the number for the computation. All functions have internal
// linkage, and only `kernels.cpp` includes this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace clip {
namespace {

template <class To, class From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "both types need the same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// A number in memory, which can be unaligned.
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

struct Float32 {
    using Bits = std::uint32_t;
    using Number = float;
    static constexpr char CODE = 'f';
    static float load(Bits x) { return bit_cast<float>(x); }
    static Bits store(float x) { return bit_cast<Bits>(x); }
};

struct Float64 {
    using Bits = std::uint64_t;
    using Number = double;
    static constexpr char CODE = 'd';
    static double load(Bits x) { return bit_cast<double>(x); }
    static Bits store(double x) { return bit_cast<Bits>(x); }
};

struct BFloat16 {
    using Bits = std::uint16_t;
    using Number = float;
    static constexpr char CODE = 'B';
    static float load(Bits x) { return bit_cast<float>(std::uint32_t(x) << 16); }
    static Bits store(float x) {
        const auto bits = bit_cast<std::uint32_t>(x);
        return static_cast<Bits>((bits & 0x7FFFFFFF) > 0x7F800000 ? (bits >> 16 | 0x40) : rounded(bits) >> 16);
    }
    // Return bits whose upper half is the rounded number, unless it is NaN.
    static std::uint32_t rounded(std::uint32_t bits) { return bits + 0x7FFF + (bits >> 16 & 1); }
};

// Two neighbouring numbers in memory.
struct BFloat16Pair {
    using Bits = std::uint32_t;
};

struct Float16 {
    using Bits = std::uint16_t;
    using Number = float;
    static constexpr char CODE = 'e';
    static float load(Bits x) {
        const std::uint32_t magnitude = std::uint32_t(x & 0x7FFF) << 13, sign = std::uint32_t(x & 0x8000) << 16;
        const auto scaled = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) * 0x1p112f);  // also for subnormals
        return bit_cast<float>(sign | ((x & 0x7C00) == 0x7C00 ? magnitude | 0x7F800000 : scaled));
    }
    static Bits store(float x) {
        const auto bits = bit_cast<std::uint32_t>(x);
        const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
        // Below 2^-14, adding 0.5 leaves the rounded multiple of 2^-24 in the last bits.
        const std::uint32_t small = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
        const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
        const std::uint32_t special = magnitude > 0x7F800000 ? 0x7E00 : 0x7C00;
        const std::uint32_t finite = magnitude < 0x38800000 ? small : normal;
        return static_cast<Bits>(sign | (magnitude >= 0x47800000 ? special : finite));
    }
};

template <class Dtype>
using Numbers = Unaligned<typename Dtype::Bits>;

template <class Dtype>
const Numbers<Dtype>* numbers(const char* x) {
    return reinterpret_cast<const Numbers<Dtype>*>(x);
}

#ifdef __F16C__
// Convert float16 numbers as `Float16::load` does. NaN becomes a quiet NaN. `count` is a multiple of HALVES.
constexpr std::size_t HALVES = 8;
inline void load_halves(const Numbers<Float16>* x, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i += HALVES)
        _mm256_store_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
}

// Convert to float16 as `Float16::store` does, except for the lower bits of NaN.
inline void store_halves(const float* x, Numbers<Float16>* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i += HALVES)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm256_cvtps_ph(_mm256_load_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif

}  // namespace
}  // namespace clip
