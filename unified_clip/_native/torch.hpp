// Norms and products as operators of PyTorch, by its stable C interface (2.10 and later). No Python here, and no header
// of PyTorch. The process has loaded PyTorch's library, so functions are found by their names. Declarations are as in
// torch/csrc/stable/c/shim.h and torch/csrc/inductor/aoti_torch/c/shim.h.
#pragma once

#include <memory>
#include <stdexcept>

#include "loaded.hpp"
#include "norm.hpp"

namespace clip::torch {

struct Tensor;
struct List;
struct OperatorLibrary;

using Value = std::uint64_t;  // an argument or a result: a number, or the address of an object
using Operator = void (*)(Value* arguments_and_results, std::uint64_t, std::uint64_t);

constexpr std::uint64_t VERSION = 2ULL << 56 | 10ULL << 48;  // the version of the interface

#define CLIP_FUNCTION(name, ...) Function<__VA_ARGS__> name{this, #name}
struct Api : Library {
    CLIP_FUNCTION(aoti_torch_library_init_impl, int(const char*, const char*, const char*, std::uint32_t,
                  OperatorLibrary**));
    CLIP_FUNCTION(torch_library_impl, int(OperatorLibrary*, const char*, Operator, std::uint64_t));
    Function<const char*()> torch_exception_get_what{this, "torch_exception_get_what", false};  // since PyTorch 2.13
    CLIP_FUNCTION(torch_get_num_threads, int(std::uint32_t*));

    CLIP_FUNCTION(torch_list_size, int(List*, std::size_t*));
    CLIP_FUNCTION(torch_list_get_item, int(List*, std::size_t, Value*));
    CLIP_FUNCTION(torch_delete_list, int(List*));

    CLIP_FUNCTION(aoti_torch_get_data_ptr, int(Tensor*, void**));
    CLIP_FUNCTION(aoti_torch_get_numel, int(Tensor*, std::int64_t*));
    CLIP_FUNCTION(aoti_torch_get_dim, int(Tensor*, std::int64_t*));
    CLIP_FUNCTION(aoti_torch_get_sizes, int(Tensor*, std::int64_t**));
    CLIP_FUNCTION(aoti_torch_get_strides, int(Tensor*, std::int64_t**));
    CLIP_FUNCTION(aoti_torch_get_dtype, int(Tensor*, std::int32_t*));
    CLIP_FUNCTION(aoti_torch_delete_tensor_object, int(Tensor*));
    CLIP_FUNCTION(aoti_torch_empty_strided, int(std::int64_t, const std::int64_t*, const std::int64_t*, std::int32_t,
                  std::int32_t, std::int32_t, Tensor**));

    CLIP_FUNCTION(aoti_torch_device_type_cpu, std::int32_t());
    CLIP_FUNCTION(aoti_torch_dtype_float16, std::int32_t());
    CLIP_FUNCTION(aoti_torch_dtype_bfloat16, std::int32_t());
    CLIP_FUNCTION(aoti_torch_dtype_float32, std::int32_t());
    CLIP_FUNCTION(aoti_torch_dtype_float64, std::int32_t());
};
#undef CLIP_FUNCTION

inline Api api;

inline void check(int error) {
    if (error)
        throw std::runtime_error(api.torch_exception_get_what ? api.torch_exception_get_what() : "an error of PyTorch");
}

struct DeleteTensor {
    void operator()(Tensor* tensor) const { api.aoti_torch_delete_tensor_object(tensor); }
};
using OwnTensor = std::unique_ptr<Tensor, DeleteTensor>;

struct DeleteList {
    void operator()(List* list) const { api.torch_delete_list(list); }
};
using OwnList = std::unique_ptr<List, DeleteList>;

template <class Number>
Number read(const Function<int(Tensor*, Number*)>& get, const OwnTensor& tensor) {
    Number number;
    check(get(tensor.get(), &number));
    return number;
}

inline const Kernels* kernels_of(const OwnTensor& tensor) {
    const Kernels* kernels = find_kernels(code_of(
        read(api.aoti_torch_get_dtype, tensor),
        {{api.aoti_torch_dtype_float32(), 'f'}, {api.aoti_torch_dtype_bfloat16(), 'B'},
         {api.aoti_torch_dtype_float16(), 'e'}, {api.aoti_torch_dtype_float64(), 'd'}}));
    if (!kernels) throw std::invalid_argument("unified_clip's operators take float16, bfloat16, float32 and float64");
    return kernels;
}

inline Span span(const OwnTensor& tensor) {
    const auto count = static_cast<std::size_t>(read(api.aoti_torch_get_numel, tensor));
    Span span{static_cast<char*>(read(api.aoti_torch_get_data_ptr, tensor)), count, kernels_of(tensor)};
    const auto axes = static_cast<std::size_t>(read(api.aoti_torch_get_dim, tensor));
    const std::int64_t* shape = read(api.aoti_torch_get_sizes, tensor);
    const std::int64_t* steps = read(api.aoti_torch_get_strides, tensor);
    if (is_dense(axes, shape, steps, 1)) return span;
    if (axes > MAX_AXES) throw std::invalid_argument("unified_clip's operators take tensors of at most 65 axes");
    span.shape.assign(shape, shape + axes);
    for (std::size_t axis = 0; axis < axes; ++axis)
        span.steps.push_back(steps[axis] * static_cast<std::int64_t>(span.kernels->size));
    return span;
}

// The tensors of a list.
class Tensors {
   public:
    Spans spans;

    explicit Tensors(Value list) {
        const OwnList own(reinterpret_cast<List*>(list));
        std::size_t size = 0;
        check(api.torch_list_size(own.get(), &size));
        tensors_.reserve(size);
        spans.reserve(size);
        for (std::size_t i = 0; i < size; ++i) {
            Value tensor = 0;
            check(api.torch_list_get_item(own.get(), i, &tensor));
            tensors_.emplace_back(reinterpret_cast<Tensor*>(tensor));
            spans.push_back(span(tensors_.back()));
        }
    }

   private:
    std::vector<OwnTensor> tensors_;
};

inline std::size_t threads() {
    std::uint32_t threads = 1;
    check(api.torch_get_num_threads(&threads));
    return threads;
}

// kernel_norm(Tensor[] tensors, float p, bool per_tensor) -> Tensor
inline void norm_operator(Value* stack, std::uint64_t, std::uint64_t) {
    const Tensors tensors(stack[0]);
    double p = 0;
    std::memcpy(&p, &stack[1], sizeof p);
    if (p != 1 && p != 2) throw std::invalid_argument("unified_clip::kernel_norm takes the orders 1 and 2");
    const bool per_tensor = stack[2] & 1;
    const auto count = static_cast<std::int64_t>(tensors.spans.size());
    constexpr std::int64_t step = 1;
    Tensor* result = nullptr;
    check(api.aoti_torch_empty_strided(per_tensor, &count, &step, api.aoti_torch_dtype_float64(),
                                       api.aoti_torch_device_type_cpu(), -1, &result));
    OwnTensor norms(result);
    write_norms(tensors.spans, 1, static_cast<int>(p), per_tensor, threads(),
                static_cast<double*>(read(api.aoti_torch_get_data_ptr, norms)));
    stack[0] = reinterpret_cast<Value>(norms.release());
}

// scale_(Tensor(a!)[] tensors, Tensor coef, bool per_tensor) -> ()
inline void scale_operator(Value* stack, std::uint64_t, std::uint64_t) {
    const OwnTensor coef(reinterpret_cast<Tensor*>(stack[1]));
    const Tensors tensors(stack[0]);
    const auto count = static_cast<std::size_t>(read(api.aoti_torch_get_numel, coef));
    if (read(api.aoti_torch_get_dtype, coef) != api.aoti_torch_dtype_float64() ||
        count != (stack[2] & 1 ? tensors.spans.size() : 1))
        throw std::invalid_argument("unified_clip::scale_ takes a float64 coefficient, or one for each tensor");
    const auto* numbers = static_cast<const double*>(read(api.aoti_torch_get_data_ptr, coef));
    const std::vector<double> coefs(numbers, numbers + count);
    if (std::any_of(coefs.begin(), coefs.end(), [](double number) { return number != 1; }))
        scale(tensors.spans, tensors.spans, coefs, threads());
}

// Implement both operators, once per process. Return false if this PyTorch lacks a function.
inline bool register_operators() {
    static const bool registered = [] {
        OperatorLibrary* library = nullptr;
        return api.load({"libtorch_cpu.so"}) &&
               !api.aoti_torch_library_init_impl("unified_clip", "CPU", "torch.hpp", __LINE__, &library) &&
               !api.torch_library_impl(library, "kernel_norm", norm_operator, VERSION) &&
               !api.torch_library_impl(library, "scale_", scale_operator, VERSION);
    }();
    return registered;
}

}  // namespace clip::torch
