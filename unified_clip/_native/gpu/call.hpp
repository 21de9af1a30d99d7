// The parameters of a launch: what the host writes (gpu.hpp) and the kernels read (clip.cu).
#ifndef CLIP_CALL
#define CLIP_CALL

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum Mode { FAST, PAIRS, PRECISE, WIDE };
enum Dtype : u32 { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, DTYPES };

constexpr u32 LOADS = 8;  // 16-byte loads that a thread has under way. A chunk, what a block reads at a time, has as many
constexpr u32 CODE_SHIFT = 24;

// Tensors in chunks. `data` has the addresses of the tensors, and from `targets` on those of the results. Results that
// replace the tensors have the same addresses: `targets` is 0.
template <u32 N>
struct List {
    u32 tensors, chunks, targets, unused;
    u64 data[N];
    u32 end[N];   // the number of chunks up to the end of this tensor
    u32 tail[N];  // the number of elements in its last chunk, and from bit CODE_SHIFT on its dtype
};

// A sum is `high + low` in units of 2^(order * exponent). Exponents other than 0 occur only in the mode WIDE.
struct Sum {
    double high, low, exponent;
};

// The other parameters. Each kernel uses some of them.
struct Call {
    Sum* sums;        // ADD writes them from `first` on
    const Sum* fast;  // the sums of the mode FAST or PAIRS. If they settle the norm, `sums` are not needed. Can be null
    double error, fast_error;  // bounds on the relative errors of norms from `sums` and from `fast`
    double* norm;              // FINISH writes one norm, or one for each tensor
    void* rounded;             // the norm as float32, or as float64 if `wide`. Can be null
    const double* coefs;       // of SCALE: one, or one for each tensor
    double threshold, eps;
    double low[DTYPES], high[DTYPES];  // the bounds of CLAMP, rounded to each dtype
    u32 first, count, fast_count;
    u32 wide;                     // whether the norm of the list is float64
    u32 each;                     // whether each tensor has a norm and a coefficient of its own
    u32 infinite_norm_gives_nan;  // a `ClipConvention` of _core/rule.py, like `eps`
};

#endif
