// The kernels: loops over contiguous numbers, in one table per instruction set. `kernels.cpp` implements them.
#pragma once

#include <cstddef>

namespace clip {

// `BLOCK` of unified_clip/_core/exact.py: the maximum number of elements in one float64 sum.
constexpr std::size_t BLOCK = 4096;

// The maximum number of elements in one compensated sum. A thread processes one piece at a time.
constexpr std::size_t PIECE = 16 * BLOCK;

// A sum of two float64 numbers, with a relative error below 2^-80.
struct CompensatedSum {
    double sum, rest;
};

// The kernels of one dtype. Numbers can be unaligned. `out` may be `x`.
struct Kernels {
    char code;         // as in `CODES` of unified_clip/_compute/kernels.py
    std::size_t size;  // bytes per number

    // Write the float64 sum of every BLOCK numbers. Null for float64, whose terms are not exact in float64.
    void (*magnitude_sums)(const char* x, std::size_t count, double* sums);
    void (*square_sums)(const char* x, std::size_t count, double* sums);
    // Add the square of each number to a separate sum. Null for float64.
    void (*add_squares)(const char* x, std::size_t count, double* sums);

    // Return the sum of at most PIECE numbers.
    CompensatedSum (*compensated_magnitudes)(const char* x, std::size_t count);
    CompensatedSum (*compensated_squares)(const char* x, std::size_t count);

    // Convert the numbers to float64.
    void (*widen)(const char* x, std::size_t count, double* out);
    // Return the largest magnitude, or NaN if any number is NaN.
    double (*max_abs)(const char* x, std::size_t count);

    // `coef` is rounded to the dtype of the multiplication: float64 for float64, else float32.
    void (*scale)(const char* x, char* out, std::size_t count, double coef);
    // NaN stays NaN. The bounds are numbers of the dtype.
    void (*clamp)(const char* x, char* out, std::size_t count, double low, double high);
};

constexpr std::size_t DTYPES = 4;
constexpr char CODES[] = "eBfd";  // float16, bfloat16, float32, float64: the order of each table

// CMake compiles `kernels.cpp` for each of these tables.
extern const Kernels BASELINE_KERNELS[DTYPES];
extern const Kernels AVX2_KERNELS[DTYPES];
extern const Kernels AVX512_KERNELS[DTYPES];

}  // namespace clip
