// Norms and products as operators of Paddle's programs, by its C++ interface for custom operators. No Python here, and
// no header of Paddle. The process has loaded Paddle's library, so functions are found by their mangled names, which
// contain the types of their parameters. Objects of Paddle's classes are passed on, but never read, so their layout
// does not matter. Declarations are as in op_meta_info.h and tensor.h of paddle/phi/api, and in
// paddle/phi/core/dense_tensor.h.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "loaded.hpp"
#include "norm.hpp"

namespace clip::paddle {

struct Operators;  // the operators of the process, by name
struct Builder;    // builds an operator
struct Context;    // one call of an operator
struct Tensor;
struct Memory;  // the memory of a dense tensor
struct Place;
struct Attribute;
enum class Dtype : int {};

using Shape = std::vector<std::int64_t>;
using Dtypes = std::vector<Dtype>;
using Names = std::vector<std::string>;
using InPlace = std::unordered_map<std::string, std::string>;  // from inputs to the outputs that use their memory
using Range = std::pair<std::size_t, std::size_t>;
using Kernel = void (*)(Context*);
using InferShape = std::vector<Shape> (*)(const std::vector<Shape>&, const std::vector<std::vector<Shape>>&,
                                          const std::vector<Attribute>&);
using InferDtype = Dtypes (*)(const Dtypes&, const std::vector<Dtypes>&, const std::vector<Attribute>&);

#define CLIP_STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

// Paddle's functions. The first argument of a member function is its object.
struct Api : Library {
    Function<Operators&()> operators{this, "_ZN6paddle13OpMetaInfoMap8InstanceEv"};
    Function<const std::unordered_map<std::string, std::vector<Attribute>>&(const Operators&)> operators_by_name{
        this, "_ZNK6paddle13OpMetaInfoMap6GetMapB5cxx11Ev"};
    Function<void(Builder*, std::string&&, std::size_t)> new_operator{
        this, "_ZN6paddle17OpMetaInfoBuilderC1EO" CLIP_STRING "m"};
    Function<Builder&(Builder*, Names&&)> set_inputs{
        this, "_ZN6paddle17OpMetaInfoBuilder6InputsEOSt6vectorI" CLIP_STRING "SaIS7_EE"};
    Function<Builder&(Builder*, Names&&)> set_outputs{
        this, "_ZN6paddle17OpMetaInfoBuilder7OutputsEOSt6vectorI" CLIP_STRING "SaIS7_EE"};
    Function<Builder&(Builder*, InPlace&&)> set_in_place{
        this, "_ZN6paddle17OpMetaInfoBuilder13SetInplaceMapEOSt13unordered_mapI" CLIP_STRING
        "S7_St4hashIS7_ESt8equal_toIS7_ESaISt4pairIKS7_S7_EEE"};
    Function<Builder&(Builder*, Kernel)> set_kernel{
        this, "_ZN6paddle17OpMetaInfoBuilder11SetKernelFnEPFvPNS_21CustomOpKernelContextEE"};
    Function<Builder&(Builder*, InferShape)> set_infer_shape{
        this, "_ZN6paddle17OpMetaInfoBuilder15SetInferShapeFnEPFSt6vectorIS1_IlSaIlEESaIS3_EERKS5_RKS1_IS5_SaIS5_"
        "EERKS1_INS_3anyESaISC_EEE"};
    Function<Builder&(Builder*, InferDtype)> set_infer_dtype{
        this, "_ZN6paddle17OpMetaInfoBuilder15SetInferDtypeFnEPFSt6vectorIN3phi8DataTypeESaIS3_EERKS5_RKS1_IS5_"
        "SaIS5_EERKS1_INS_3anyESaISC_EEE"};

    Function<const Range&(const Context*, std::size_t)> input_range{
        this, "_ZNK6paddle21CustomOpKernelContext12InputRangeAtEm"};
    Function<Tensor&(Context*, std::size_t)> input{this, "_ZN6paddle21CustomOpKernelContext14MutableInputAtEm"};
    Function<Tensor*(Context*, std::size_t)> output{this, "_ZN6paddle21CustomOpKernelContext15MutableOutputAtEm"};

    Function<const void*(const Tensor&)> data{this, "_ZNK6paddle6Tensor4dataEv"};
    Function<std::int64_t(const Tensor&)> count{this, "_ZNK6paddle6Tensor5numelEv"};
    Function<Dtype(const Tensor&)> dtype{this, "_ZNK6paddle6Tensor5dtypeEv"};
    Function<bool(const Tensor&)> is_cpu{this, "_ZNK6paddle6Tensor6is_cpuEv"};
    Function<bool(const Tensor&)> is_contiguous{this, "_ZNK6paddle6Tensor13is_contiguousEv"};
    Function<const Place&(const Tensor&)> place{this, "_ZNK6paddle6Tensor5placeEv"};
    Function<const std::shared_ptr<Memory>&(const Tensor&)> memory{this, "_ZNK6paddle6Tensor4implEv"};
    Function<double*(Memory*, const Place&, std::size_t)> allocate{
        this, "_ZN3phi11DenseTensor12mutable_dataIdEEPT_RKNS_5PlaceEm"};
};

#undef CLIP_STRING

#if defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
constexpr bool HAS_NAMES = true;  // the names above contain this std::string
#else
constexpr bool HAS_NAMES = false;
#endif

inline Api api;

// The settings that Python passes.
struct Settings {
    std::unordered_map<int, char> codes;  // from Paddle's dtypes to codes. A complex number is two real numbers
    int float64 = 0;                      // Paddle's number for the dtype
    std::size_t threads = 1;
};

inline Settings settings;

inline Span span(const Tensor& tensor) {
    const auto code = settings.codes.find(static_cast<int>(api.dtype(tensor)));
    if (code == settings.codes.end())
        throw std::invalid_argument("unified_clip's operators take floating-point and complex tensors");
    const auto count = static_cast<std::size_t>(api.count(tensor));
    if (count == 0) return span_of(code->second, nullptr, 0);
    if (!api.is_cpu(tensor))
        throw std::invalid_argument(
            "a program that was built for the CPU, with the kernels of unified_clip, runs on another device. Call "
            "paddle.set_device before you build the program, or set UNIFIED_CLIP_GRAPH=framework");
    if (!api.is_contiguous(tensor)) throw std::invalid_argument("unified_clip's operators take contiguous tensors");
    return span_of(code->second, api.data(tensor), count);
}

// The first input is the list of tensors. The first output is the norm, or a vector of norms.
template <int P, bool PER_TENSOR>
void compute_norm(Context* context) {
    const auto [begin, end] = api.input_range(context, 0);
    Spans spans;
    spans.reserve(end - begin);
    for (std::size_t i = begin; i < end; ++i) spans.push_back(span(api.input(context, i)));
    Memory* const norm = api.memory(*api.output(context, 0)).get();
    write_norms(spans, 1, P, PER_TENSOR, settings.threads, api.allocate(norm, api.place(api.input(context, begin)), 0));
}

template <bool PER_TENSOR>
std::vector<Shape> norm_shape(const std::vector<Shape>&, const std::vector<std::vector<Shape>>& lists,
                              const std::vector<Attribute>&) {
    return {PER_TENSOR ? Shape{static_cast<std::int64_t>(lists[0].size())} : Shape{}};
}

inline Dtypes norm_dtype(const Dtypes&, const std::vector<Dtypes>&, const std::vector<Attribute>&) {
    return {static_cast<Dtype>(settings.float64)};
}

// Multiply the first input by the second input, a float64, in place. The coefficient 1 changes no bit, not even of a
// NaN.
inline void multiply(Context* context) {
    const Span gradient = span(api.input(context, 0));
    const Tensor& coef = api.input(context, 1);
    if (static_cast<int>(api.dtype(coef)) != settings.float64 || api.count(coef) != 1 || !api.is_cpu(coef))
        throw std::invalid_argument("unified_clip_scale takes one float64 coefficient in CPU memory");
    const double factor = *static_cast<const double*>(api.data(coef));
    if (factor != 1) scale({gradient}, {gradient}, {factor}, settings.threads);
}

// A kernel that also prints its errors, because Paddle's executor only raises "std::exception".
template <void (*COMPUTE)(Context*)>
void reported(Context* context) {
    try {
        COMPUTE(context);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unified_clip: %s\n", error.what());
        throw;
    }
}

// Describe an operator to Paddle. If another copy of unified_clip has described it, return nullptr, because Paddle
// would end the process.
inline Builder* define(const char* name, Names inputs, Names outputs, Kernel kernel) {
    if (api.operators_by_name(api.operators()).count(name)) return nullptr;
    auto* builder = reinterpret_cast<Builder*>(new std::max_align_t[64]());  // never freed. Paddle's builder has 48 bytes
    api.new_operator(builder, name, 0);
    api.set_inputs(builder, std::move(inputs));
    api.set_outputs(builder, std::move(outputs));
    api.set_kernel(builder, kernel);
    return builder;
}

template <int P, bool PER_TENSOR>
void define_norm(const char* name) {
    if (Builder* builder = define(name, {"X@VECTOR"}, {"Norm"}, &reported<&compute_norm<P, PER_TENSOR>>)) {
        api.set_infer_shape(builder, &norm_shape<PER_TENSOR>);
        api.set_infer_dtype(builder, &norm_dtype);
    }
}

// Describe the operators to Paddle, once per process. Return false if this Paddle lacks a function.
inline bool define_operators(Settings given) {
    static const bool defined = [&] {
        if (!HAS_NAMES || !api.load({"libphi_core.so"})) return false;
        settings = std::move(given);
        define_norm<1, false>("unified_clip_norm_1");
        define_norm<2, false>("unified_clip_norm_2");
        define_norm<1, true>("unified_clip_norms_1");
        define_norm<2, true>("unified_clip_norms_2");
        if (Builder* builder = define("unified_clip_scale", {"X", "Coef"}, {"Out"}, &reported<&multiply>))
            api.set_in_place(builder, {{"X", "Out"}});
        return true;
    }();
    return defined;
}

}  // namespace clip::paddle
