// Norms and products inside graphs of TensorFlow, by its C interface. No Python here, and no header of TensorFlow. The
// process has loaded TensorFlow's library, so functions are found by their names. Declarations are as in tensorflow/c.
#pragma once

#if defined(__linux__)
#include <dlfcn.h>
#endif

#include <exception>
#include <memory>
#include <new>

#include "elementwise.hpp"
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

// Return a function of the loaded TensorFlow, or nullptr if no function has this name.
inline void* find(const char* name) {
#if defined(__linux__)
    for (const char* library : {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"})  // in 2.18 and 2.21
        if (void* handle = dlopen(library, RTLD_NOLOAD | RTLD_NOW))
            if (void* found = dlsym(handle, name)) return found;
#endif
    (void)name;
    return nullptr;
}

// TensorFlow's functions, without the prefix TF_.
struct Api {
    Status* (*NewStatus)();
    void (*DeleteStatus)(Status*);
    int (*GetCode)(const Status*);
    const char* (*Message)(const Status*);
    void (*SetStatus)(Status*, int, const char*);

    Tensor* (*NewTensor)(int, const std::int64_t*, int, void*, std::size_t, void (*)(void*, std::size_t, void*), void*);
    void (*DeleteTensor)(Tensor*);
    std::int64_t (*TensorElementCount)(const Tensor*);
    void* (*TensorData)(const Tensor*);
    int (*TensorType)(const Tensor*);
    int (*NumDims)(const Tensor*);
    std::int64_t (*Dim)(const Tensor*, int);

    int (*NumInputs)(Context*);
    void (*GetInput)(Context*, int, Tensor**, Status*);
    void (*SetOutput)(Context*, int, const Tensor*, Status*);
    Tensor* (*AllocateOutput)(Context*, int, int, const std::int64_t*, int, std::size_t, Status*);
    Tensor* (*ForwardInputOrAllocateOutput)(Context*, const int*, int, int, const std::int64_t*, int, int*, Status*);
    void (*OpKernelContext_Failure)(Context*, Status*);

    void (*OpKernelConstruction_GetAttrInt64)(Construction*, const char*, std::int64_t*, Status*);
    void (*OpKernelConstruction_GetAttrBool)(Construction*, const char*, unsigned char*, Status*);
    void (*OpKernelConstruction_GetAttrSize)(Construction*, const char*, std::int32_t*, std::int32_t*, Status*);
    void (*OpKernelConstruction_GetAttrString)(Construction*, const char*, char*, std::size_t, Status*);
    void (*OpKernelConstruction_Failure)(Construction*, Status*);
    KernelBuilder* (*NewKernelBuilder)(const char*, const char*, void* (*)(Construction*), void (*)(void*, Context*),
                                       void (*)(void*));
    void (*RegisterKernelBuilder)(const char*, KernelBuilder*, Status*);

    OpBuilder* (*NewOpDefinitionBuilder)(const char*);
    void (*OpDefinitionBuilderAddAttr)(OpBuilder*, const char*);
    void (*OpDefinitionBuilderAddInput)(OpBuilder*, const char*);
    void (*OpDefinitionBuilderAddOutput)(OpBuilder*, const char*);
    void (*OpDefinitionBuilderSetShapeInferenceFunction)(OpBuilder*, ShapeFunction);
    void (*RegisterOpDefinition)(OpBuilder*, Status*);

    std::int64_t (*ShapeInferenceContextNumInputs)(ShapeContext*);
    ShapeHandle* (*NewShapeHandle)();
    void (*DeleteShapeHandle)(ShapeHandle*);
    void (*ShapeInferenceContextGetInput)(ShapeContext*, int, ShapeHandle*, Status*);
    void (*ShapeInferenceContextSetOutput)(ShapeContext*, int, ShapeHandle*, Status*);
    void (*ShapeInferenceContextSetUnknownShape)(ShapeContext*, Status*);

    // Return whether the process has all functions.
    bool load() {
#define CLIP_LOAD(name) found = found && (name = reinterpret_cast<decltype(name)>(find("TF_" #name)))
        bool found = true;
        CLIP_LOAD(NewStatus), CLIP_LOAD(DeleteStatus), CLIP_LOAD(GetCode), CLIP_LOAD(Message);
        CLIP_LOAD(SetStatus);
        CLIP_LOAD(NewTensor), CLIP_LOAD(DeleteTensor), CLIP_LOAD(TensorElementCount), CLIP_LOAD(TensorData);
        CLIP_LOAD(TensorType), CLIP_LOAD(NumDims), CLIP_LOAD(Dim);
        CLIP_LOAD(NumInputs), CLIP_LOAD(GetInput), CLIP_LOAD(SetOutput), CLIP_LOAD(AllocateOutput);
        CLIP_LOAD(ForwardInputOrAllocateOutput), CLIP_LOAD(OpKernelContext_Failure);
        CLIP_LOAD(OpKernelConstruction_GetAttrInt64), CLIP_LOAD(OpKernelConstruction_GetAttrBool);
        CLIP_LOAD(OpKernelConstruction_GetAttrSize), CLIP_LOAD(OpKernelConstruction_GetAttrString);
        CLIP_LOAD(OpKernelConstruction_Failure);
        CLIP_LOAD(NewKernelBuilder), CLIP_LOAD(RegisterKernelBuilder);
        CLIP_LOAD(NewOpDefinitionBuilder), CLIP_LOAD(OpDefinitionBuilderAddAttr);
        CLIP_LOAD(OpDefinitionBuilderAddInput), CLIP_LOAD(OpDefinitionBuilderAddOutput);
        CLIP_LOAD(OpDefinitionBuilderSetShapeInferenceFunction), CLIP_LOAD(RegisterOpDefinition);
        CLIP_LOAD(ShapeInferenceContextNumInputs), CLIP_LOAD(NewShapeHandle), CLIP_LOAD(DeleteShapeHandle);
        CLIP_LOAD(ShapeInferenceContextGetInput), CLIP_LOAD(ShapeInferenceContextSetOutput);
        CLIP_LOAD(ShapeInferenceContextSetUnknownShape);
#undef CLIP_LOAD
        return found;
    }
};

inline Api api;

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

    // Return an input's numbers. A complex number is two real numbers.
    static Span span(const Tensor* tensor) {
        const int dtype = api.TensorType(tensor);
        const bool is_complex = dtype == COMPLEX64 || dtype == COMPLEX128;
        const char code = dtype == FLOAT16                            ? 'e'
                          : dtype == BFLOAT16                         ? 'B'
                          : dtype == FLOAT32 || dtype == COMPLEX64    ? 'f'
                                                                      : 'd';
        const auto count = static_cast<std::size_t>(api.TensorElementCount(tensor));
        return {static_cast<char*>(api.TensorData(tensor)), count * (is_complex ? 2 : 1), find_kernels(code)};
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
    const auto read = [&](auto get, const char* name, auto* value) {
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

inline bool register_kernel(const char* name, void* (*create)(Construction*), void (*compute)(void*, Context*)) {
    const OwnStatus status;
    api.RegisterKernelBuilder(name, api.NewKernelBuilder(name, "CPU", create, compute, destroy), status);
    return !api.GetCode(status);
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
    return !api.GetCode(definition) && register_kernel(name, create, compute);
}

// Register both operations, once per process. Return false if this TensorFlow lacks a function.
inline bool register_operations() {
    static const bool registered =
        api.load() &&
        register_op("UnifiedClipNorm", {"gradients: T"}, "norm: double", unknown_shape, compute<compute_norm>) &&
        register_op("UnifiedClipScale", {"gradients: T", "coef: double"}, "products: T", shapes_of_inputs,
                    compute<compute_products>);
    return registered;
}

}  // namespace clip::tensorflow
