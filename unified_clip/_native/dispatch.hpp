// The choice of the kernels for this processor.
#pragma once

#include "kernels.hpp"

namespace clip {

// Return the table for this processor.
inline const Kernels* kernel_table() {
#ifdef CLIP_AVX2
    __builtin_cpu_init();
#endif
#ifdef CLIP_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return AVX512_KERNELS;
#endif
#ifdef CLIP_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2_KERNELS;
#endif
    return BASELINE_KERNELS;
}

inline const Kernels* const KERNEL_TABLE = kernel_table();

// Return the kernels of a dtype, or null for a code that no dtype has.
inline const Kernels* find_kernels(char code) {
    for (std::size_t dtype = 0; dtype < DTYPES; ++dtype)
        if (KERNEL_TABLE[dtype].code == code) return &KERNEL_TABLE[dtype];
    return nullptr;
}

}  // namespace clip
