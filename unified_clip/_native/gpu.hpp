// Launch the kernels of gpu/clip.cu. No header of CUDA is needed: the functions of its driver are found when a process
// first clips on a GPU, and Python compiles the kernels (unified_clip/_compute/cuda.py).
#pragma once

#include <cmath>
#include <memory>
#include <stdexcept>
#include <unordered_map>

#include "device_list.hpp"
#include "loaded.hpp"

namespace clip::gpu {

#include "gpu/call.hpp"

using Stream = void*;
using CompiledKernel = void*;

// As in cuda.h of CUDA 12.
#define CLIP_FUNCTION(name, ...) Function<__VA_ARGS__> name{this, #name}
struct Driver : Library {
    CLIP_FUNCTION(cuInit, int(unsigned));
    CLIP_FUNCTION(cuDriverGetVersion, int(int*));
    CLIP_FUNCTION(cuGetErrorName, int(int, const char**));
    CLIP_FUNCTION(cuDeviceGet, int(int*, int));
    CLIP_FUNCTION(cuDeviceGetAttribute, int(int*, int, int));
    CLIP_FUNCTION(cuDevicePrimaryCtxRetain, int(void**, int));
    CLIP_FUNCTION(cuCtxGetCurrent, int(void**));
    CLIP_FUNCTION(cuCtxPushCurrent_v2, int(void*));
    CLIP_FUNCTION(cuCtxPopCurrent_v2, int(void**));
    CLIP_FUNCTION(cuModuleLoadData, int(void**, const void*));
    CLIP_FUNCTION(cuModuleGetFunction, int(CompiledKernel*, void*, const char*));
    CLIP_FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor, int(int*, CompiledKernel, int, std::size_t));
    CLIP_FUNCTION(cuThreadExchangeStreamCaptureMode, int(int*));
    CLIP_FUNCTION(cuLaunchKernel, int(CompiledKernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, Stream, void**, void**));

    explicit Driver(const std::string& library) {
#if defined(__linux__)
        if (!load({library.c_str()}, false)) throw std::runtime_error(dlerror());
#else
        throw std::runtime_error("unified_clip loads CUDA's driver on Linux only, not " + library);
#endif
    }

    void check(int error, const char* function) const {
        if (!error) return;
        const char* name = nullptr;
        cuGetErrorName(error, &name);
        throw std::runtime_error(std::string(function) + " failed: " + (name ? name : "an unknown error"));
    }
};
#undef CLIP_FUNCTION

#define CLIP_CALL_DRIVER(function, ...) driver_.check(driver_.function(__VA_ARGS__), #function)

enum Kernel { ADD, FINISH, CLIP, SCALE, CLAMP };

// The options of a compiled kernel.
struct Variant {
    u32 kernel, order, mode, dtypes;
    bool long_list;

    u32 key() const { return ((kernel * 3 + order) * 4 + mode) * 32 + dtypes * 2 + long_list; }
};

struct Loaded {
    CompiledKernel function;
    u32 blocks;  // as many as run at once
};

struct Device {
    void* context;
    int capability;
    u32 processors;
    bool takes_long_lists;
    std::unordered_map<u32, Loaded> kernels;
};

struct Part {
    std::size_t first, end;  // tensors
    u32 chunks;
};

// What the kernels need to know about sums that ADD has written.
struct Sums {
    u32 count, fast_count;
    std::size_t depth;
};

class Gpu {
   public:
    // `compile`: (capability such as 90, options) -> the kernel as a cubin. `threads`: of a block. `fast_from`: lists of at
    // least this many 16-bit numbers are summed in float64 first.
    Gpu(const std::string& library, nb::object compile, u32 threads, std::size_t fast_from)
        : driver_(library), compile_(std::move(compile)), threads_(threads), fast_from_(fast_from) {
        CLIP_CALL_DRIVER(cuInit, 0);
        CLIP_CALL_DRIVER(cuDriverGetVersion, &version_);
    }

    int driver_version() const { return version_; }
    int capability(int device) { return device_of(device).capability; }

    // Return the number of float64 numbers that `add` needs for its sums.
    std::size_t numbers(const DeviceList& list, bool each) {
        const Device& device = device_of(list.device());
        std::size_t sums = 0;
        for (const Part& part : parts(list, device, false))
            sums += each ? part.chunks : 2 * std::min<std::size_t>(part.chunks, most_blocks(device));
        return sums * (sizeof(Sum) / sizeof(double));
    }

    // `each`: for each chunk, else for each block. `precise`: without a fast pass.
    Sums add(const DeviceList& list, u32 order, bool each, bool precise, Sum* sums, Stream stream) {
        Device& device = device_of(list.device());
        const auto found = parts(list, device, false);
        const Mode mode = order == 0             ? FAST
                          : list.has_float64     ? WIDE
                          : each || precise      ? PRECISE
                          : has_slow_float64(device) ? PAIRS
                          : list.is_narrow() && total_count(list.spans()) >= fast_from_ ? FAST
                                                                                         : PRECISE;
        Call call = {};
        call.sums = sums, call.wide = list.has_float64, call.each = each;
        const auto [count, depth] = add_parts(list, device, found, order, mode, call, stream);
        if (!order || (mode != FAST && mode != PAIRS)) return {count, 0, depth};
        call.fast = sums, call.fast_count = count, call.fast_error = fast_error(depth, mode == PAIRS);
        call.sums = sums + count, call.first = 0;
        const auto [precise_count, precise_depth] = add_parts(list, device, found, order, PRECISE, call, stream);
        return {precise_count, count, std::max(depth, precise_depth)};
    }

    // Write the norm, or one for each tensor. `rounded`: the total norm in its own dtype.
    void norm(const DeviceList& list, u32 order, bool each, Sum* sums, double* norms, void* rounded, Stream stream) {
        Device& device = device_of(list.device());
        const Sums added = add(list, order, each, false, sums, stream);
        Call call = described(device, list.has_float64, sums, added);
        call.norm = norms, call.rounded = rounded, call.each = each;
        for (const Part& part : parts(list, device, false)) {
            launch(device, {FINISH, order, FAST, 1, is_long(part, false)}, each ? part.end - part.first : 1, list, part,
                   nullptr, call, stream);
            if (!each) return;
            call.first += part.chunks, call.norm += part.end - part.first;
        }
    }

    // Write the norm of sums that may come from several devices.
    void finish(int id, u32 order, bool wide, Sum* sums, const Sums& added, double* norm, void* rounded, Stream stream) {
        Device& device = device_of(id);
        Call call = described(device, wide, sums, added);
        call.norm = norm, call.rounded = rounded;
        launch(device, {FINISH, order, FAST, 1, false}, 1, DeviceList(id, {}, {}, ""), {0, 0, 0}, nullptr, call, stream);
    }

    // Clip by the total norm, and write the norm in its dtype. `targets`: the addresses of new tensors, or none.
    void clip(const DeviceList& list, u32 order, double threshold, double eps, bool infinite_norm_gives_nan, Sum* sums,
              void* rounded, const std::vector<std::uintptr_t>& targets, Stream stream) {
        Device& device = device_of(list.device());
        const Sums added = add(list, order, false, false, sums, stream);
        Call call = described(device, list.has_float64, sums, added);
        call.threshold = threshold, call.eps = eps, call.infinite_norm_gives_nan = infinite_norm_gives_nan;
        call.rounded = rounded;
        change(device, {CLIP, order, FAST, 0, false}, list, targets, call, stream);
    }

    void scale(const DeviceList& list, const double* coefs, bool each, const std::vector<std::uintptr_t>& targets,
               Stream stream) {
        Call call = {};
        call.coefs = coefs, call.each = each;
        change(device_of(list.device()), {SCALE, 0, FAST, 0, false}, list, targets, call, stream);
    }

    // The bounds are rounded to float16, bfloat16, float32 and float64.
    void clamp(const DeviceList& list, const std::array<double, DTYPES>& low, const std::array<double, DTYPES>& high,
               const std::vector<std::uintptr_t>& targets, Stream stream) {
        Call call = {};
        std::copy(low.begin(), low.end(), call.low), std::copy(high.begin(), high.end(), call.high);
        change(device_of(list.device()), {CLAMP, 0, FAST, 0, false}, list, targets, call, stream);
    }

   private:
    // Parameters have 4 KB, or 32,764 bytes from CUDA 12.1 on.
    static constexpr u32 SHORT = 240, LONG = 2032;
    static_assert(sizeof(List<SHORT>) + sizeof(Call) <= 4096 && sizeof(List<LONG>) + sizeof(Call) <= 32764);
    static constexpr int LONG_LISTS_FROM = 12010, LEAST_CAPABILITY = 70;
    static constexpr u32 BLOCKS = 8;  // the largest number on a processor

    static bool has_slow_float64(const Device& device) {
        const int with_fast[] = {70, 80, 90, 100};  // others have a 32nd or a 64th of the speed of float32
        return std::find(std::begin(with_fast), std::end(with_fast), device.capability) == std::end(with_fast);
    }

    // The bounds of clip.cu on the relative errors of sums, which are those of norms of order 1. A root has half of them.
    static double fast_error(std::size_t depth, bool in_pairs) {
        return 1.01 * std::ldexp(static_cast<double>(depth), -53) + (in_pairs ? 0x1p-38 : 0) + 0x1p-100;
    }
    static double error(std::size_t depth) {
        const auto additions = static_cast<double>(depth);
        return std::ldexp(4 * additions * additions, -106) + 0x1p-100;
    }

    Call described(const Device& device, bool wide, Sum* sums, const Sums& added) const {
        Call call = {};
        call.wide = wide, call.count = added.count, call.fast_count = added.fast_count;
        call.sums = sums + added.fast_count, call.fast = added.fast_count ? sums : nullptr;
        call.error = error(added.depth), call.fast_error = fast_error(added.depth, has_slow_float64(device));
        return call;
    }

    u32 most_blocks(const Device& device) const { return device.processors * BLOCKS; }
    std::size_t chunk_bytes() const { return std::size_t(threads_) * LOADS * 16; }
    static bool is_long(const Part& part, bool moves) { return (part.end - part.first) * (1 + moves) > SHORT; }

    // Split the list into parts that fit a launch. `moves`: each tensor has two addresses.
    std::vector<Part> parts(const DeviceList& list, const Device& device, bool moves) const {
        const std::size_t most = (device.takes_long_lists ? LONG : SHORT) / (1 + moves);
        constexpr std::size_t CHUNKS = std::size_t(1) << 31;
        const Spans& spans = list.spans();
        std::vector<Part> found;
        std::size_t chunks = 0;
        for (std::size_t i = 0; i < spans.size(); ++i) {
            const std::size_t own = (spans[i].bytes() + chunk_bytes() - 1) / chunk_bytes();
            if (own >= CHUNKS) throw std::invalid_argument("a tensor is too long for a launch");
            if (found.empty() || i - found.back().first == most || chunks + own >= CHUNKS) {
                found.push_back({i, i, 0});
                chunks = 0;
            }
            chunks += own;
            found.back().end = i + 1, found.back().chunks = static_cast<u32>(chunks);
        }
        return found;
    }

    static u32 code(const Span& span) {
        switch (span.kernels->code) {
            case 'e': return FLOAT16;
            case 'B': return BFLOAT16;
            case 'f': return FLOAT32;
            default: return FLOAT64;
        }
    }

    template <u32 N>
    void fill(List<N>& list, const Spans& spans, const Part& part, const std::vector<std::uintptr_t>* targets) const {
        const std::size_t tensors = part.end - part.first;
        list.tensors = static_cast<u32>(tensors), list.chunks = part.chunks;
        list.targets = targets ? list.tensors : 0;
        u32 end = 0;
        for (std::size_t i = 0; i < tensors; ++i) {
            const Span& span = spans[part.first + i];
            const std::size_t size = span.kernels->size, chunk = chunk_bytes() / size;
            const std::size_t chunks = (span.count + chunk - 1) / chunk;
            list.data[i] = reinterpret_cast<std::uintptr_t>(span.data);
            if (targets) list.data[tensors + i] = targets->at(part.first + i);
            list.end[i] = end += static_cast<u32>(chunks);
            list.tail[i] = static_cast<u32>(span.count - (chunks - 1) * chunk) | code(span) << CODE_SHIFT;
        }
    }

    struct Added {
        u32 count;
        std::size_t depth;
    };

    Added add_parts(const DeviceList& list, Device& device, const std::vector<Part>& found, u32 order, Mode mode,
                    Call& call, Stream stream) {
        std::size_t longest = 0;  // the chunks of a block
        for (const Part& part : found) {
            const Variant variant{ADD, order, mode, dtypes(list, part), is_long(part, false)};
            const u32 blocks = std::min(part.chunks, device.processors * load(device, variant).blocks);
            launch(device, variant, blocks, list, part, nullptr, call, stream);
            call.first += call.each ? part.chunks : blocks;
            longest = std::max<std::size_t>(longest, call.each ? 1 : (part.chunks + blocks - 1) / blocks);
        }
        // A thread adds at most 64 numbers of 16 groups and one more in a chunk; then come warps, blocks and lists.
        const std::size_t in_blocks = 5 + threads_ / 32;
        return {call.first, 65 * longest + 2 * in_blocks + call.first / threads_ + 8};
    }

    void change(Device& device, Variant variant, const DeviceList& list, const std::vector<std::uintptr_t>& targets,
                const Call& given, Stream stream) {
        Call call = given;
        const bool moves = !targets.empty();
        for (const Part& part : parts(list, device, moves)) {
            variant.dtypes = dtypes(list, part), variant.long_list = is_long(part, moves);
            const u32 blocks = std::min(part.chunks, device.processors * load(device, variant).blocks);
            launch(device, variant, blocks, list, part, moves ? &targets : nullptr, call, stream);
            if (call.each) call.coefs += part.end - part.first;
        }
    }

    static u32 dtypes(const DeviceList& list, const Part& part) {
        u32 found = 0;
        for (std::size_t i = part.first; i < part.end; ++i) found |= 1u << code(list.spans()[i]);
        return found;
    }

    void launch(Device& device, const Variant& variant, std::size_t blocks, const DeviceList& list, const Part& part,
                const std::vector<std::uintptr_t>* targets, Call call, Stream stream) {
        const Loaded loaded = load(device, variant);
        const std::size_t bytes = variant.long_list ? sizeof(List<LONG>) : sizeof(List<SHORT>);
        const std::unique_ptr<char[]> memory(new char[bytes]);
        if (variant.long_list) fill(*reinterpret_cast<List<LONG>*>(memory.get()), list.spans(), part, targets);
        else fill(*reinterpret_cast<List<SHORT>*>(memory.get()), list.spans(), part, targets);
        void* parameters[] = {memory.get(), &call};
        const Current current(driver_, device.context);
        CLIP_CALL_DRIVER(cuLaunchKernel, loaded.function, static_cast<unsigned>(blocks), 1, 1, threads_, 1, 1, 0, stream,
                         parameters, nullptr);
    }

    // Makes a device's context current.
    class Current {
       public:
        Current(const Driver& driver, void* context) : driver_(driver) {
            void* before = nullptr;
            CLIP_CALL_DRIVER(cuCtxGetCurrent, &before);
            if (before == context) return;
            CLIP_CALL_DRIVER(cuCtxPushCurrent_v2, context);
            pushed_ = true;
        }
        ~Current() {
            void* context = nullptr;
            if (pushed_) driver_.cuCtxPopCurrent_v2(&context);
        }
        Current(const Current&) = delete;

       private:
        const Driver& driver_;
        bool pushed_ = false;
    };

    // Lets this thread load code while it, or another thread, captures a CUDA graph.
    class Relaxed {
       public:
        explicit Relaxed(const Driver& driver) : driver_(driver) { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
        ~Relaxed() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
        Relaxed(const Relaxed&) = delete;

       private:
        const Driver& driver_;
        int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
    };

    Device& device_of(int id) {
        const auto found = devices_.find(id);
        if (found != devices_.end()) return found->second;
        int handle = 0, major = 0, minor = 0, processors = 0;
        CLIP_CALL_DRIVER(cuDeviceGet, &handle, id);
        constexpr int PROCESSORS = 16, MAJOR = 75, MINOR = 76;
        CLIP_CALL_DRIVER(cuDeviceGetAttribute, &processors, PROCESSORS, handle);
        CLIP_CALL_DRIVER(cuDeviceGetAttribute, &major, MAJOR, handle);
        CLIP_CALL_DRIVER(cuDeviceGetAttribute, &minor, MINOR, handle);
        const int capability = 10 * major + minor;
        if (capability < LEAST_CAPABILITY)
            throw std::runtime_error("the GPU has the compute capability " + std::to_string(major) + "." +
                                     std::to_string(minor) + ", and the kernels need 7.0");
        void* context = nullptr;
        CLIP_CALL_DRIVER(cuDevicePrimaryCtxRetain, &context, handle);
        const Device device{context, capability, static_cast<u32>(processors), version_ >= LONG_LISTS_FROM, {}};
        return devices_.emplace(id, device).first->second;
    }

    Loaded load(Device& device, const Variant& variant) {
        const auto found = device.kernels.find(variant.key());
        if (found != device.kernels.end()) return found->second;
        const char* const kernels[] = {"ADD", "FINISH", "CLIP", "SCALE", "CLAMP"};
        const char* const modes[] = {"FAST", "PAIRS", "PRECISE", "WIDE"};
        nb::list options;
        const auto define = [&](const char* name, const std::string& value) {
            options.append(nb::str(("-D" + std::string(name) + "=" + value).c_str()));
        };
        define(kernels[variant.kernel], "1"), define("MODE", modes[variant.mode]);
        define("ORDER", std::to_string(variant.order)), define("HAS", std::to_string(variant.dtypes));
        define("CAPACITY", std::to_string(variant.long_list ? LONG : SHORT));
        define("THREADS", std::to_string(threads_));
        const Relaxed relaxed(driver_);
        const nb::bytes cubin = nb::cast<nb::bytes>(compile_(device.capability, options));
        const Current current(driver_, device.context);
        void* module = nullptr;
        Loaded loaded{};
        int blocks = 0;
        CLIP_CALL_DRIVER(cuModuleLoadData, &module, cubin.c_str());
        CLIP_CALL_DRIVER(cuModuleGetFunction, &loaded.function, module, "kernel");
        CLIP_CALL_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, loaded.function, static_cast<int>(threads_), 0);
        loaded.blocks = static_cast<u32>(std::clamp(blocks, 1, static_cast<int>(BLOCKS)));
        return device.kernels[variant.key()] = loaded;
    }

    Driver driver_;
    nb::object compile_;
    u32 threads_;
    std::size_t fast_from_;
    int version_ = 0;
    std::unordered_map<int, Device> devices_;
};

#undef CLIP_CALL_DRIVER

}  // namespace clip::gpu
