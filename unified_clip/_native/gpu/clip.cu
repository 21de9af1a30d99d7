// The kernels for lists of gradients on NVIDIA GPUs: norms, products and clamped values.
//
// No header is included, because NVRTC compiles this file on machines without CUDA's headers. It compiles one kernel at a
// time, which takes 0.1 to 0.3 s, for one device and these options:
//   ADD, FINISH, CLIP, SCALE or CLAMP: the kernel, at the end of this file
//   ORDER     1, 2, or 0 for the largest magnitude
//   MODE      how ADD sums: FAST, PAIRS, PRECISE or WIDE
//   HAS       the dtypes of the list, as bits 1 << FLOAT16 and so on
//   CAPACITY  how many addresses fit a launch's parameters
//   THREADS   the number of threads in a block
// The tests compile the same text with g++ and run it on the CPU (tests/support/cuda/emulation.hpp).
//
// A launch carries its list of tensors in its parameters. So no table is kept in the memory of the GPU, and a CUDA graph
// holds its own copy. Blocks do not wait for each other, and no result depends on their order: each writes a sum of its
// own, and later kernels add these sums in the order of the blocks.

#include "call.hpp"

constexpr u32 CHUNK_BYTES = THREADS * LOADS * 16;
constexpr u32 WARP = 32, WARPS = THREADS / WARP;

// -- numbers

inline u64 bits_of(double x) { return static_cast<u64>(__double_as_longlong(x)); }
inline double of_bits(u64 bits) { return __longlong_as_double(static_cast<long long>(bits)); }

constexpr u64 INFINITY_BITS = 0x7FF0000000000000, SIGN = 0x8000000000000000;
constexpr int LEAST_EXPONENT = -1022, LARGEST_EXPONENT = 1022;

// 2^n for n from -1022 to 1023. Below, 0.
inline double power_of_two(int n) {
    return n < LEAST_EXPONENT ? 0.0 : of_bits(static_cast<u64>(n + 1023) << 52);
}

// The exponent of a number, between LEAST_EXPONENT (also for subnormal numbers) and LARGEST_EXPONENT (also for NaN).
inline int exponent_of(double x) {
    const int exponent = static_cast<int>((bits_of(x) >> 52) & 0x7FF) - 1023;
    return exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent > LARGEST_EXPONENT ? LARGEST_EXPONENT : exponent;
}

struct Float16 { u16 bits; };
struct BFloat16 { u16 bits; };

#ifdef __CUDACC_RTC__
inline float half_to_float(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
inline u16 float_to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

inline float wide(float x) { return x; }
inline double wide(double x) { return x; }
inline float wide(Float16 x) { return half_to_float(x.bits); }
inline float wide(BFloat16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }

template <class T> struct Type { using Product = float; };
template <> struct Type<double> { using Product = double; };

inline void narrow(float x, float& out) { out = x; }
inline void narrow(double x, double& out) { out = x; }
inline void narrow(float x, Float16& out) { out.bits = float_to_half(x); }
inline void narrow(float x, BFloat16& out) {
    const u32 bits = __float_as_uint(x);
    const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    out.bits = static_cast<u16>(nan ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// -- the elements of a chunk

inline u32 word(const uint4& x, u32 i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }
inline u32& word(uint4& x, u32 i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// Number `i` of 16 bytes. The loops around are unrolled, so that the bytes stay in registers.
inline void unpack(const uint4& x, u32 i, float& out) { out = __uint_as_float(word(x, i)); }
inline void unpack(const uint4& x, u32 i, double& out) {
    out = of_bits(static_cast<u64>(word(x, 2 * i + 1)) << 32 | word(x, 2 * i));
}
template <class Half>
inline void unpack(const uint4& x, u32 i, Half& out) {
    out.bits = static_cast<u16>(word(x, i / 2) >> 16 * (i % 2));
}
inline void pack(uint4& x, u32 i, float value) { word(x, i) = __float_as_uint(value); }
inline void pack(uint4& x, u32 i, double value) {
    const u64 bits = bits_of(value);
    word(x, 2 * i) = static_cast<u32>(bits), word(x, 2 * i + 1) = static_cast<u32>(bits >> 32);
}
template <class Half>
inline void pack(uint4& x, u32 i, Half value) {
    const u32 shift = 16 * (i % 2);
    word(x, i / 2) = (word(x, i / 2) & ~(0xFFFFu << shift)) | static_cast<u32>(value.bits) << shift;
}

// A chunk as aligned groups of 16 bytes, with the few numbers before and after them. Each thread has at most LOADS groups
// and one of these numbers, whatever the address.
template <class T>
struct Layout {
    static constexpr u32 GROUP = 16 / sizeof(T);
    u32 head, groups, rest;

    inline Layout(const T* at, u32 length) {
        head = static_cast<u32>(-reinterpret_cast<u64>(at) & 15) / sizeof(T);
        head = head < length ? head : length;
        groups = (length - head) / GROUP;
        rest = length - groups * GROUP;
    }
    inline u32 index_of_rest(u32 i) const { return i < head ? i : i + groups * GROUP; }
};

// Call add(number, place) for the numbers of a chunk, and for zeros. `place` tells the numbers of a group apart.
// COMPACT: with one load under way, for long code that takes long to compile.
template <bool COMPACT, class T, class Add>
inline void for_each(const T* at, u32 length, const Add& add) {
    const Layout<T> layout(at, length);
    const uint4* const groups = reinterpret_cast<const uint4*>(at + layout.head);
    if (threadIdx.x < layout.rest) add(wide(at[layout.index_of_rest(threadIdx.x)]), 0);
    if constexpr (COMPACT) {
#pragma unroll 1
        for (u32 group = threadIdx.x; group < layout.groups; group += THREADS) {
            const uint4 loaded = groups[group];
#pragma unroll
            for (u32 place = 0; place < Layout<T>::GROUP; ++place) {
                T number;
                unpack(loaded, place, number);
                add(wide(number), place);
            }
        }
    } else {
        uint4 loaded[LOADS];
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            const u32 group = threadIdx.x + i * THREADS;
            loaded[i] = group < layout.groups ? groups[group] : uint4{0, 0, 0, 0};
        }
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i)
#pragma unroll
            for (u32 place = 0; place < Layout<T>::GROUP; ++place) {
                T number;
                unpack(loaded[i], place, number);
                add(wide(number), place);
            }
    }
}

// Write change(number) for each number of a chunk. The stores do not stay in the caches, where they would displace
// numbers that this launch still reads.
template <class T, class Change>
inline void transform(const T* at, T* to, u32 length, const Change& change) {
    const Layout<T> layout(at, length);
    if ((reinterpret_cast<u64>(at) ^ reinterpret_cast<u64>(to)) & 15) {  // no group is aligned in both
        for (u32 i = threadIdx.x; i < length; i += THREADS) to[i] = change(at[i]);
        return;
    }
    const uint4* const groups = reinterpret_cast<const uint4*>(at + layout.head);
    uint4* const results = reinterpret_cast<uint4*>(to + layout.head);
    uint4 loaded[LOADS];
#pragma unroll
    for (u32 i = 0; i < LOADS; ++i) {
        const u32 group = threadIdx.x + i * THREADS;
        loaded[i] = group < layout.groups ? __ldcs(groups + group) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (u32 i = 0; i < LOADS; ++i) {
#pragma unroll
        for (u32 place = 0; place < Layout<T>::GROUP; ++place) {
            T number;
            unpack(loaded[i], place, number);
            pack(loaded[i], place, change(number));
        }
        const u32 group = threadIdx.x + i * THREADS;
        if (group < layout.groups) __stcs(results + group, loaded[i]);
    }
    if (threadIdx.x < layout.rest) {
        const u32 i = layout.index_of_rest(threadIdx.x);
        to[i] = change(at[i]);
    }
}

// Call work(at, to, length) with pointers to the numbers of a chunk and of its results.
template <u32 TYPES, u32 N, class Work>
inline void with_chunk(const List<N>& list, u32 tensor, u32 chunk, const Work& work) {
    const u32 number = chunk - (tensor ? list.end[tensor - 1] : 0);
    const u32 tail = list.tail[tensor] & ((1u << CODE_SHIFT) - 1), dtype = list.tail[tensor] >> CODE_SHIFT;
    const u64 at = list.data[tensor] + static_cast<u64>(number) * CHUNK_BYTES;
    const u64 to = list.data[tensor + list.targets] + static_cast<u64>(number) * CHUNK_BYTES;
    const bool last = chunk + 1 == list.end[tensor];
#define WITH(T) work(reinterpret_cast<const T*>(at), reinterpret_cast<T*>(to), last ? tail : CHUNK_BYTES / u32(sizeof(T)))
    if constexpr (TYPES & 1 << FLOAT32) if (dtype == FLOAT32) WITH(float);
    if constexpr (TYPES & 1 << BFLOAT16) if (dtype == BFLOAT16) WITH(BFloat16);
    if constexpr (TYPES & 1 << FLOAT16) if (dtype == FLOAT16) WITH(Float16);
    if constexpr (TYPES & 1 << FLOAT64) if (dtype == FLOAT64) WITH(double);
#undef WITH
}

template <u32 N>
inline u32 tensor_of(const List<N>& list, u32 chunk) {
    u32 low = 0, high = list.tensors - 1;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (list.end[middle] <= chunk) low = middle + 1;
        else high = middle;
    }
    return low;
}

// -- sums, and bounds on their errors
//
// Let S be the exact sum of n numbers, none negative, u = 2^-53, and D the largest number of additions that a number
// passes through. `DeviceList::depth` of device_list.hpp computes D from the lengths and the number of blocks.
//
// FAST adds float64. Products of two float32 are exact, and each addition has a relative error of at most u. So the sum
// has one of at most (1 + u)^D - 1 < 1.01 D u.
//
// PRECISE also adds the errors. `add` splits h + x without an error into a float64 h' and an error e of at most u h'.
// The additions at one level of the tree have results that add up to S, so all |e| together are at most D u S. `low` is
// their sum. It passes at most 3 D additions, so it has an error of at most 3 D u (D + 1) u S (1 + D u) < 4 D^2 u^2 S.
//
// WIDE does the same for float64, whose squares are split without an error into a float64 and an error of at most u
// times the square; these errors are the `+ 1` above. It scales by a power of two, so that nothing overflows. What
// underflows is below 2^-1000 S.
//
// PAIRS adds the numbers of one thread and chunk as PRECISE does, but in float32 with u = 2^-24. A lane gets d <= 17
// numbers, so its sum has a relative error of at most 2 d (d + 1) u^2 < 2^-38. Float64 adds these sums. Float32 underflows
// below 2^-149, at most 2^7 times in a sum of at least PAIRS_LEAST = 2^-90, which adds less than 2^-52. Sums outside of
// PAIRS_LEAST and PAIRS_LARGEST are computed again in float64.
//
// The root of a sum has half of its relative error. `nearest` adds less than 2^-100.

constexpr float PAIRS_LEAST = 0x1p-90f, PAIRS_LARGEST = 0x1p+120f;

inline void add(double& high, double& low, double x) {
    const double sum = high + x, part = sum - high;
    low += (high - (sum - part)) + (x - part);
    high = sum;
}
inline void add(float& high, float& low, float x) {
    const float sum = high + x, part = sum - high;
    low += (high - (sum - part)) + (x - part);
    high = sum;
}

// Units of a larger exponent. The factor is a power of two.
template <int P>
inline void scale_to(Sum& sum, double exponent) {
    const double factor = power_of_two(P * static_cast<int>(sum.exponent - exponent));
    sum.high *= factor, sum.low *= factor, sum.exponent = exponent;
}

// Add another sum, in the same units. For P 0, `high` is the larger number, or NaN: its bits are the largest.
template <int P>
inline void merge(Sum& sum, const Sum& other) {
    if constexpr (P == 0) {
        if (bits_of(other.high) > bits_of(sum.high)) sum.high = other.high;
    } else {
        add(sum.high, sum.low, other.high);
        sum.low += other.low;
    }
}

// What one thread sums. `take` gets a number, `end_chunk` a chunk whose numbers were taken.
template <int P, Mode M>
struct Lanes;

template <int P>
struct Lanes<P, FAST> {
    double lanes[4] = {0, 0, 0, 0};
    inline void take(double x, u32 place) {
        double& lane = lanes[place % 4];
        lane = P == 2 ? fma(x, x, lane) : lane + fabs(x);
    }
    template <class T> inline void end_chunk(const T*, u32) {}
    inline Sum sum() const { return {(lanes[0] + lanes[1]) + (lanes[2] + lanes[3]), 0, 0}; }
};

template <int P>
struct Lanes<P, PRECISE> {
    Sum lanes[2] = {{0, 0, 0}, {0, 0, 0}};
    inline void take(double x, u32 place) {
        Sum& lane = lanes[place % 2];
        add(lane.high, lane.low, P == 2 ? x * x : fabs(x));
    }
    template <class T> inline void end_chunk(const T*, u32) {}
    inline Sum sum() const {
        Sum all = lanes[0];
        merge<P>(all, lanes[1]);
        return all;
    }
};

template <int P>
struct Lanes<P, WIDE> {
    Sum lane = {0, 0, LEAST_EXPONENT};
    inline void take(double x, u32) {
        const double exponent = exponent_of(x);
        if (exponent > lane.exponent) scale_to<P>(lane, exponent);
        x = fabs(x) * power_of_two(-static_cast<int>(lane.exponent));
        if constexpr (P == 2) {
            const double square = x * x;
            add(lane.high, lane.low, square);
            lane.low += fma(x, x, -square);
        } else {
            add(lane.high, lane.low, x);
        }
    }
    template <class T> inline void end_chunk(const T*, u32) {}
    inline Sum sum() const { return lane; }
};

template <int P>
struct Lanes<P, PAIRS> {
    float high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
    u32 bits = 0;  // 0 as long as all numbers are 0
    double total = 0;

    inline void take(float x, u32 place) {
        const u32 lane = place % 4;
        bits |= __float_as_uint(x) << 1;
        if constexpr (P == 2) {
            const float square = x * x;
            add(high[lane], low[lane], square);
            low[lane] += fmaf(x, x, -square);
        } else {
            add(high[lane], low[lane], fabsf(x));
        }
    }
    inline void take(double, u32) {}  // lists with float64 have the mode WIDE
    template <class T>
    inline void end_chunk(const T* at, u32 length) {
        const float sum = (high[0] + high[1]) + (high[2] + high[3]);
        if (!bits || (sum >= PAIRS_LEAST && sum <= PAIRS_LARGEST)) {
            for (u32 lane = 0; lane < 4; ++lane) total += static_cast<double>(high[lane]) + low[lane];
        } else {
            Lanes<P, FAST> again;
            for_each<true>(at, length, [&](auto x, u32 place) { again.take(x, place); });
            total += again.sum().high;
        }
        for (u32 lane = 0; lane < 4; ++lane) high[lane] = low[lane] = 0;
        bits = 0;
    }
    inline Sum sum() const { return {total, 0, 0}; }
};

// The largest magnitude. As integers, magnitudes have the same order, and NaN comes last.
struct Largest {
    u64 wide_bits = 0;
    u32 bits = 0;
    inline void take(float x, u32) {
        const u32 own = __float_as_uint(x) & 0x7FFFFFFF;
        bits = own > bits ? own : bits;
    }
    inline void take(double x, u32) {
        const u64 own = bits_of(x) & ~SIGN;
        wide_bits = own > wide_bits ? own : wide_bits;
    }
    template <class T> inline void end_chunk(const T*, u32) {}
    inline Sum sum() const {
        Sum largest = {of_bits(wide_bits), 0, 0};
        merge<0>(largest, {static_cast<double>(__uint_as_float(bits)), 0, 0});
        return largest;
    }
};
template <> struct Lanes<0, FAST> : Largest {};
template <> struct Lanes<0, PAIRS> : Largest {};
template <> struct Lanes<0, PRECISE> : Largest {};
template <> struct Lanes<0, WIDE> : Largest {};

// Add the sums of the threads of a block. All threads get the result.
template <int P>
inline Sum block_sum(Sum sum, bool wide) {
    __shared__ Sum of_warps[WARPS];
    __shared__ double exponents[WARPS];
    if (P != 0 && wide) {  // the same units first
        double exponent = sum.exponent;
#pragma unroll
        for (u32 distance = WARP / 2; distance; distance /= 2) {
            const double other = __shfl_xor_sync(~0u, exponent, distance);
            exponent = other > exponent ? other : exponent;
        }
        if (threadIdx.x % WARP == 0) exponents[threadIdx.x / WARP] = exponent;
        __syncthreads();
        for (u32 warp = 0; warp < WARPS; ++warp) exponent = exponents[warp] > exponent ? exponents[warp] : exponent;
        scale_to<P>(sum, exponent);
    }
#pragma unroll
    for (u32 distance = WARP / 2; distance; distance /= 2) {
        Sum other = sum;
        other.high = __shfl_xor_sync(~0u, sum.high, distance);
        if (P != 0) other.low = __shfl_xor_sync(~0u, sum.low, distance);
        merge<P>(sum, other);
    }
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = of_warps[0];
    for (u32 warp = 1; warp < WARPS; ++warp) merge<P>(sum, of_warps[warp]);
    __syncthreads();  // before the next call writes
    return sum;
}

// Add sums from `begin` to `end`.
template <int P>
inline Sum total(const Sum* sums, u32 begin, u32 end, bool wide) {
    Sum sum = {0, 0, wide ? static_cast<double>(LEAST_EXPONENT) : 0.0};
    for (u32 i = begin + threadIdx.x; i < end; i += THREADS) {
        Sum other = sums[i];
        if (P != 0 && wide) {
            if (other.exponent > sum.exponent) scale_to<P>(sum, other.exponent);
            else scale_to<P>(other, sum.exponent);
        }
        merge<P>(sum, other);
    }
    return block_sum<P>(sum, wide);
}

// -- norms and coefficients

struct Rounded {
    double norm;
    bool doubtful;  // the sum is so close to a midpoint between two norms that its error may decide
};

// Round the norm to float32, or to float64. `error`: a bound on the relative error of the norm. A sum that is as close to
// a midpoint counts as the midpoint, which rounds to even.
//
// The root is t + c, with an error below 2^-102 t: t^2 is subtracted without an error, and the next term of the series is
// c^2 / 2t, with c <= 2^-52 t. r is the norm on the side of 0 or of infinity of t + c, and q the distance of the next one
// on the other side. All differences below are exact.
template <int P>
inline Rounded nearest(const Sum& sum, bool wide, double error) {
    if (P == 0 || !(sum.high > 0 && sum.high < of_bits(INFINITY_BITS))) return {sum.high, false};
    double t = sum.high + sum.low, c = sum.low - (t - sum.high);
    if constexpr (P == 2) {
        const double square = t, rest = c;
        t = sqrt(square);
        c = (fma(-t, t, square) + rest) / (2 * t);
    }
    const int unit = static_cast<int>(sum.exponent), digits = wide ? 53 : 24, least = (wide ? -1074 : -149) - unit;
    int exponent = exponent_of(t) - digits + 1;
    if (c < 0 && (bits_of(t) << 12) == 0) --exponent;  // t is a power of two, and the norms below are closer
    const double q = power_of_two(exponent > least ? exponent : least);
    const double r = rint(t / q) * q, past = (t - r) + c;
    const double half = (t > r || (t == r && c > 0)) ? q / 2 : -q / 2, other = r + 2 * half;
    const double beyond = ((t - r) - half) + c;  // from the midpoint
    const double steps = r / q;
    const bool even = floor(steps / 2) * 2 == steps;
    const bool doubtful = past != 0 && fabs(beyond) <= t * error;
    const double norm = doubtful ? (even ? r : other) : (half > 0 ? beyond > 0 : beyond < 0) ? other : r;
    const double scaled = norm * power_of_two(unit);
    return {wide || scaled <= 0x1.fffffep+127 ? scaled : of_bits(INFINITY_BITS), doubtful};
}

// Whether the fast sums leave the norm in doubt.
template <int P>
inline Rounded fast_norm(const Call& call) {
    return nearest<P>(total<P>(call.fast, 0, call.fast_count, false), false, call.fast_error);
}

template <int P>
inline double norm_of_list(const Call& call) {
    if (call.fast) {
        const Rounded fast = fast_norm<P>(call);
        if (!fast.doubtful) return fast.norm;
    }
    return nearest<P>(total<P>(call.sums, 0, call.count, call.wide), call.wide, call.error).norm;
}

// `coefficient` of _core/rule.py.
inline double coefficient(double norm, const Call& call) {
    const double denominator = norm + call.eps;
    if (denominator <= call.threshold) return 1;
    if (call.infinite_norm_gives_nan && norm >= of_bits(INFINITY_BITS)) return of_bits(INFINITY_BITS | 1ull << 51);
    return call.threshold / denominator;
}

inline void store_norm(const Call& call, double norm) {
    if (!call.rounded) return;
    if (call.wide) *static_cast<double*>(call.rounded) = norm;
    else *static_cast<float*>(call.rounded) = static_cast<float>(norm);
}

// -- the kernels

// Write a sum for each block, or for each chunk. The mode PRECISE after a fast mode writes nothing if there is no doubt.
template <int P, Mode M, u32 TYPES, u32 N>
inline void add_list(const List<N>& list, const Call& call) {
    if (M == PRECISE && call.fast && !fast_norm<P>(call).doubtful) return;
    Lanes<P, M> lanes;
    for (u32 chunk = blockIdx.x; chunk < list.chunks; chunk += gridDim.x) {
        with_chunk<TYPES>(list, tensor_of(list, chunk), chunk, [&](const auto* at, auto*, u32 length) {
            for_each<M == WIDE>(at, length, [&](auto x, u32 place) { lanes.take(x, place); });
            lanes.end_chunk(at, length);
        });
        if (call.each) {
            const Sum sum = block_sum<P>(lanes.sum(), M == WIDE);
            if (threadIdx.x == 0) call.sums[call.first + chunk] = sum;
            lanes = {};
        }
    }
    if (call.each) return;
    const Sum sum = block_sum<P>(lanes.sum(), M == WIDE);
    if (threadIdx.x == 0) call.sums[call.first + blockIdx.x] = sum;
}

// One block for the list, or one for each tensor. The norm of a float64 tensor is float64.
template <int P, u32 N>
inline void finish_list(const List<N>& list, const Call& call) {
    double norm;
    if (call.each) {
        const u32 tensor = blockIdx.x, begin = tensor ? list.end[tensor - 1] : 0;
        const Sum sum = total<P>(call.sums + call.first, begin, list.end[tensor], call.wide);
        norm = nearest<P>(sum, list.tail[tensor] >> CODE_SHIFT == FLOAT64, call.error).norm;
    } else {
        norm = norm_of_list<P>(call);
    }
    if (threadIdx.x) return;
    call.norm[blockIdx.x] = norm;
    store_norm(call, norm);
}

// Call change(chunk) for the chunks of this block, the last one first: what the sums have read last is still in the L2
// cache.
template <u32 N, class Change>
inline void backwards(const List<N>& list, const Change& change) {
    if (list.chunks <= blockIdx.x) return;
    u32 left = (list.chunks - 1 - blockIdx.x) / gridDim.x + 1;
    while (left--) change(blockIdx.x + left * gridDim.x);
}

template <class T>
inline T product(T number, double coef) {
    if (coef == 1) return number;
    using Product = typename Type<T>::Product;
    T result;
    narrow(wide(number) * static_cast<Product>(coef), result);
    return result;
}

// Multiply by coefficients from memory. Nothing is written if the coefficient is 1, unless the results are new tensors.
template <u32 TYPES, u32 N>
inline void scale_list(const List<N>& list, const Call& call) {
    backwards(list, [&](u32 chunk) {
        const u32 tensor = tensor_of(list, chunk);
        const double coef = call.coefs[call.each ? tensor : 0];
        if (coef == 1 && !list.targets) return;
        with_chunk<TYPES>(list, tensor, chunk, [&](const auto* at, auto* to, u32 length) {
            transform(at, to, length, [=](auto number) { return product(number, coef); });
        });
    });
}

// Round the norm, and multiply. Every block computes the same norm, so that none waits for another kernel.
template <int P, u32 TYPES, u32 N>
inline void clip_list(const List<N>& list, const Call& call) {
    const double norm = norm_of_list<P>(call);
    if (blockIdx.x == 0 && threadIdx.x == 0) store_norm(call, norm);
    const double coef = coefficient(norm, call);
    if (coef == 1 && !list.targets) return;
    backwards(list, [&](u32 chunk) {
        with_chunk<TYPES>(list, tensor_of(list, chunk), chunk, [&](const auto* at, auto* to, u32 length) {
            transform(at, to, length, [=](auto number) { return product(number, coef); });
        });
    });
}

// NaN, and numbers equal to a bound, stay as they are.
template <u32 TYPES, u32 N>
inline void clamp_list(const List<N>& list, const Call& call) {
    backwards(list, [&](u32 chunk) {
        const u32 tensor = tensor_of(list, chunk), dtype = list.tail[tensor] >> CODE_SHIFT;
        const double low = call.low[dtype], high = call.high[dtype];
        with_chunk<TYPES>(list, tensor, chunk, [&](const auto* at, auto* to, u32 length) {
            transform(at, to, length, [=](auto number) {
                using Wide = decltype(wide(number));
                const Wide value = wide(number), least = static_cast<Wide>(low), most = static_cast<Wide>(high);
                if (value < least) narrow(least, number);
                else if (value > most) narrow(most, number);
                return number;
            });
        });
    });
}

#ifdef CAPACITY
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ List<CAPACITY> list, const Call call) {
#if defined(ADD)
    add_list<ORDER, MODE, HAS>(list, call);
#elif defined(FINISH)
    finish_list<ORDER>(list, call);
#elif defined(CLIP)
    clip_list<ORDER, HAS>(list, call);
#elif defined(SCALE)
    scale_list<HAS>(list, call);
#elif defined(CLAMP)
    clamp_list<HAS>(list, call);
#endif
}
#endif
