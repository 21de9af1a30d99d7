// Choose the kernels for this processor.
#pragma once

#include "kernels.hpp"

#ifdef CLIP_AVX2
#include <cpuid.h>
#endif

namespace clip {

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

}  // namespace clip
