// Norms and products inside graphs of TensorFlow, by its C interface. No Python here, and no header of TensorFlow. The
// process has loaded TensorFlow's library, so functions are found by their names. Declarations are as in tensorflow/c.
#pragma once

#include <exception>
#include <memory>
#include <new>

#include "loaded.hpp"
#include "memory.hpp"
#include "norm.hpp"

namespace clip::tensorflow {

struct Status;
struct Tensor;
struct Context;  // one call of a kernel
struct Construction;
struct KernelBuilder;
struct OpBuilder;
struct ShapeContext;
struct ShapeHandle;

enum Dtype { FLOAT32 = 1, FLOAT64 = 2, COMPLEX64 = 8, BFLOAT16 = 14, COMPLEX128 = 18, FLOAT16 = 19 };
constexpr int RESOURCE_EXHAUSTED = 8, INTERNAL = 13;  // error codes

using ShapeFunction = void (*)(ShapeContext*, Status*);

// TensorFlow's functions, without the prefix TF_.
#define CLIP_FUNCTION(name, ...) Function<__VA_ARGS__> name{this, "TF_" #name}
struct Api : Library {
    CLIP_FUNCTION(NewStatus, Status*());
    CLIP_FUNCTION(DeleteStatus, void(Status*));
    CLIP_FUNCTION(GetCode, int(const Status*));
    CLIP_FUNCTION(Message, const char*(const Status*));
    CLIP_FUNCTION(SetStatus, void(Status*, int, const char*));

    CLIP_FUNCTION(NewTensor, Tensor*(int, const std::int64_t*, int, void*, std::size_t, void (*)(void*, std::size_t,
                  void*), void*));
    CLIP_FUNCTION(DeleteTensor, void(Tensor*));
    CLIP_FUNCTION(TensorElementCount, std::int64_t(const Tensor*));
    CLIP_FUNCTION(TensorData, void*(const Tensor*));
    CLIP_FUNCTION(TensorType, int(const Tensor*));
    CLIP_FUNCTION(NumDims, int(const Tensor*));
    CLIP_FUNCTION(Dim, std::int64_t(const Tensor*, int));

    CLIP_FUNCTION(NumInputs, int(Context*));
    CLIP_FUNCTION(GetInput, void(Context*, int, Tensor**, Status*));
    CLIP_FUNCTION(SetOutput, void(Context*, int, const Tensor*, Status*));
    CLIP_FUNCTION(AllocateOutput, Tensor*(Context*, int, int, const std::int64_t*, int, std::size_t, Status*));
    CLIP_FUNCTION(ForwardInputOrAllocateOutput, Tensor*(Context*, const int*, int, int, const std::int64_t*, int, int*,
                  Status*));
    CLIP_FUNCTION(OpKernelContext_Failure, void(Context*, Status*));

    CLIP_FUNCTION(OpKernelConstruction_GetAttrInt64, void(Construction*, const char*, std::int64_t*, Status*));
    CLIP_FUNCTION(OpKernelConstruction_GetAttrBool, void(Construction*, const char*, unsigned char*, Status*));
    CLIP_FUNCTION(OpKernelConstruction_Failure, void(Construction*, Status*));
    CLIP_FUNCTION(NewKernelBuilder, KernelBuilder*(const char*, const char*, void* (*)(Construction*), void (*)(void*,
                  Context*), void (*)(void*)));
    CLIP_FUNCTION(RegisterKernelBuilder, void(const char*, KernelBuilder*, Status*));

    CLIP_FUNCTION(NewOpDefinitionBuilder, OpBuilder*(const char*));
    CLIP_FUNCTION(OpDefinitionBuilderAddAttr, void(OpBuilder*, const char*));
    CLIP_FUNCTION(OpDefinitionBuilderAddInput, void(OpBuilder*, const char*));
    CLIP_FUNCTION(OpDefinitionBuilderAddOutput, void(OpBuilder*, const char*));
    CLIP_FUNCTION(OpDefinitionBuilderSetShapeInferenceFunction, void(OpBuilder*, ShapeFunction));
    CLIP_FUNCTION(RegisterOpDefinition, void(OpBuilder*, Status*));

    CLIP_FUNCTION(ShapeInferenceContextNumInputs, std::int64_t(ShapeContext*));
    CLIP_FUNCTION(NewShapeHandle, ShapeHandle*());
    CLIP_FUNCTION(DeleteShapeHandle, void(ShapeHandle*));
    CLIP_FUNCTION(ShapeInferenceContextGetInput, void(ShapeContext*, int, ShapeHandle*, Status*));
    CLIP_FUNCTION(ShapeInferenceContextSetOutput, void(ShapeContext*, int, ShapeHandle*, Status*));
    CLIP_FUNCTION(ShapeInferenceContextSetUnknownShape, void(ShapeContext*, Status*));
};
#undef CLIP_FUNCTION

inline Api api;

constexpr auto LIBRARIES = {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"};  // in 2.18 and 2.21

struct Failure : std::runtime_error {
    Failure(int code, const char* message) : std::runtime_error(message), code(code) {}
    int code;
};

class OwnStatus {
   public:
    ~OwnStatus() { api.DeleteStatus(status_); }
    operator Status*() const { return status_; }

    void check() const {
        if (const int code = api.GetCode(status_)) throw Failure(code, api.Message(status_));
    }

   private:
    Status* status_ = api.NewStatus();
};

struct DeleteTensor {
    void operator()(Tensor* tensor) const { api.DeleteTensor(tensor); }
};
using OwnTensor = std::unique_ptr<Tensor, DeleteTensor>;

inline OwnTensor get_input(Context* context, int i) {
    const OwnStatus status;
    Tensor* tensor = nullptr;
    api.GetInput(context, i, &tensor, status);
    status.check();
    return OwnTensor(tensor);
}

// The inputs of one call. They stay valid until `release`.
class Inputs {
   public:
    Spans spans;

    Inputs(Context* context, int count) {
        for (int i = 0; i < count; ++i) {
            tensors_.push_back(get_input(context, i));
            spans.push_back(span(tensors_.back().get()));
        }
    }

    Tensor* operator[](std::size_t i) const { return tensors_[i].get(); }

    void release() { tensors_.clear(); }

    static Span span(const Tensor* tensor) {
        const char code = code_of(api.TensorType(tensor), {{FLOAT16, 'e'}, {BFLOAT16, 'B'}, {FLOAT32, 'f'},
                                                           {FLOAT64, 'd'}, {COMPLEX64, 'F'}, {COMPLEX128, 'D'}});
        return span_of(code, api.TensorData(tensor), static_cast<std::size_t>(api.TensorElementCount(tensor)));
    }

   private:
    std::vector<OwnTensor> tensors_;
};

struct Attributes {
    std::int64_t p = 2, threads = 1;
    bool per_tensor = false, is_batch = false;
};

inline std::vector<std::int64_t> shape_of(const Tensor* tensor) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(api.NumDims(tensor)));
    for (std::size_t axis = 0; axis < shape.size(); ++axis) shape[axis] = api.Dim(tensor, static_cast<int>(axis));
    return shape;
}

// -- the kernels of both operations

inline void compute_norm(const Attributes& attributes, Context* context) {
    const int count = api.NumInputs(context);
    const Inputs inputs(context, count);
    std::vector<std::int64_t> shape;
    if (attributes.is_batch) shape.push_back(api.Dim(inputs[0], 0));
    const auto batches = static_cast<std::size_t>(attributes.is_batch ? shape[0] : 1);
    if (attributes.per_tensor) shape.push_back(count);
    const std::size_t norms = batches * static_cast<std::size_t>(attributes.per_tensor ? count : 1);
    const OwnStatus status;
    const OwnTensor norm(api.AllocateOutput(context, 0, FLOAT64, shape.data(), static_cast<int>(shape.size()),
                                            norms * sizeof(double), status));
    status.check();
    write_norms(inputs.spans, batches, static_cast<int>(attributes.p), attributes.per_tensor,
                static_cast<std::size_t>(attributes.threads), static_cast<double*>(api.TensorData(norm.get())));
}

// Set result `i` to memory from the pool. Writing to TensorFlow's memory takes longer, because it is fresh in each
// call.
inline void set_from_pool(Context* context, int i, int dtype, const std::vector<std::int64_t>& shape, const Place& place,
                          std::size_t bytes) {
    new (place.memory) Place(place);
    const auto release = [](void*, std::size_t, void* head) { Place(*static_cast<Place*>(head)).release(); };
    const OwnTensor result(api.NewTensor(dtype, shape.data(), static_cast<int>(shape.size()), place.memory + LINE, bytes,
                                         release, place.memory));
    const OwnStatus status;
    api.SetOutput(context, i, result.get(), status);
    status.check();
}

inline void compute_products(const Attributes& attributes, Context* context) {
    const int count = api.NumInputs(context) - 1;  // the coefficients come last
    Inputs inputs(context, count);
    const OwnStatus status;
    const OwnTensor last = get_input(context, count);
    const auto* numbers = static_cast<const double*>(api.TensorData(last.get()));
    const std::vector<double> coefs(numbers, numbers + api.TensorElementCount(last.get()));
    if (coefs.size() != 1 && coefs.size() != static_cast<std::size_t>(count))
        throw std::invalid_argument("a coefficient is needed for each tensor");
    if (std::all_of(coefs.begin(), coefs.end(), [](double coef) { return coef == 1; })) {
        for (int i = 0; i < count; ++i) {
            api.SetOutput(context, i, inputs[static_cast<std::size_t>(i)], status);
            status.check();
        }
        return;
    }
    std::vector<std::vector<std::int64_t>> shapes;
    std::vector<int> dtypes;
    for (int i = 0; i < count; ++i) {
        shapes.push_back(shape_of(inputs[static_cast<std::size_t>(i)]));
        dtypes.push_back(api.TensorType(inputs[static_cast<std::size_t>(i)]));
    }
    inputs.release();  // the graph keeps inputs during the call, but frees those that no other operation needs
    Spans to;
    int i = 0;
    for (int forwarded = 0; i < count && forwarded >= 0; ++i) {
        const OwnTensor result(api.ForwardInputOrAllocateOutput(context, &i, 1, i, shapes[i].data(),
                                                                static_cast<int>(shapes[i].size()), &forwarded, status));
        status.check();
        to.push_back(inputs.spans[i]);
        to.back().data = static_cast<char*>(api.TensorData(result.get()));
    }
    std::vector<std::size_t> sizes;
    for (int rest = i; rest < count; ++rest) sizes.push_back(LINE + inputs.spans[rest].bytes());
    Places places(sizes);
    for (std::size_t place = 0; i < count; ++i, ++place) {
        to.push_back(inputs.spans[i]);
        to.back().data = places[place].memory + LINE;
        places.take_over();
        set_from_pool(context, i, dtypes[i], shapes[i], places[place], inputs.spans[i].bytes());
    }
    scale(inputs.spans, to, coefs, static_cast<std::size_t>(attributes.threads));
}

// -- registration

inline void* create(Construction* construction) {
    auto attributes = std::make_unique<Attributes>();
    unsigned char per_tensor = 0, is_batch = 0;
    const auto read = [&](const auto& get, const char* name, auto* value) {
        const OwnStatus status;
        get(construction, name, value, status);
        if (api.GetCode(status)) api.OpKernelConstruction_Failure(construction, status);
    };
    read(api.OpKernelConstruction_GetAttrInt64, "threads", &attributes->threads);
    read(api.OpKernelConstruction_GetAttrInt64, "p", &attributes->p);
    read(api.OpKernelConstruction_GetAttrBool, "per_tensor", &per_tensor);
    read(api.OpKernelConstruction_GetAttrBool, "is_batch", &is_batch);
    attributes->per_tensor = per_tensor;
    attributes->is_batch = is_batch;
    return attributes.release();
}

inline void destroy(void* attributes) { delete static_cast<Attributes*>(attributes); }

template <void (*COMPUTE)(const Attributes&, Context*)>
void compute(void* attributes, Context* context) noexcept {
    const OwnStatus status;
    try {
        return COMPUTE(*static_cast<const Attributes*>(attributes), context);
    } catch (const Failure& failure) {
        api.SetStatus(status, failure.code, failure.what());
    } catch (const std::bad_alloc&) {
        api.SetStatus(status, RESOURCE_EXHAUSTED, "unified_clip has no memory for the results of a clip");
    } catch (const std::exception& error) {
        api.SetStatus(status, INTERNAL, error.what());
    }
    api.OpKernelContext_Failure(context, status);
}

inline void unknown_shape(ShapeContext* context, Status* status) {
    api.ShapeInferenceContextSetUnknownShape(context, status);
}

inline void shapes_of_inputs(ShapeContext* context, Status* status) {
    for (int i = 0; i + 1 < api.ShapeInferenceContextNumInputs(context); ++i) {
        ShapeHandle* shape = api.NewShapeHandle();
        api.ShapeInferenceContextGetInput(context, i, shape, status);
        api.ShapeInferenceContextSetOutput(context, i, shape, status);
        api.DeleteShapeHandle(shape);
    }
}

inline bool register_op(const char* name, std::initializer_list<const char*> inputs, const char* output,
                        ShapeFunction shapes, void (*compute)(void*, Context*)) {
    OpBuilder* op = api.NewOpDefinitionBuilder(name);
    for (const char* attribute : {"T: list({half, bfloat16, float, double, complex64, complex128}) >= 1",
                                  "threads: int >= 1", "p: int = 2", "per_tensor: bool = false", "is_batch: bool = false"})
        api.OpDefinitionBuilderAddAttr(op, attribute);
    for (const char* input : inputs) api.OpDefinitionBuilderAddInput(op, input);
    api.OpDefinitionBuilderAddOutput(op, output);
    api.OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
    const OwnStatus definition;
    api.RegisterOpDefinition(op, definition);
    if (api.GetCode(definition)) return false;
    const OwnStatus kernel;
    api.RegisterKernelBuilder(name, api.NewKernelBuilder(name, "CPU", create, compute, destroy), kernel);
    return !api.GetCode(kernel);
}

// Register both operations, once per process. Return false if this TensorFlow lacks a function.
inline bool register_operations() {
    static const bool registered =
        api.load(LIBRARIES) &&
        register_op("UnifiedClipNorm", {"gradients: T"}, "norm: double", unknown_shape, compute<compute_norm>) &&
        register_op("UnifiedClipScale", {"gradients: T", "coef: double"}, "products: T", shapes_of_inputs,
                    compute<compute_products>);
    return registered;
}

}  // namespace clip::tensorflow
