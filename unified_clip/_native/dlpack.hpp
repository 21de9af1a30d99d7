// The part of DLPack's C exchange interface (dlpack.h, version 1) that describes a tensor, and creates a tensor from
// memory, without a Python call.
#pragma once

#include <cstdint>

namespace dlpack {

constexpr std::int32_t CPU = 1, CUDA = 2, ROCM = 10;
constexpr std::uint8_t FLOAT = 2, BFLOAT = 4;

struct Tensor {
    void* data;
    struct {
        std::int32_t type, id;
    } device;
    std::int32_t ndim;
    struct {
        std::uint8_t code, bits;
        std::uint16_t lanes;
    } dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

// The memory of a tensor, for a new owner.
struct Managed {
    struct {
        std::uint32_t major, minor;
    } version;
    void* context;
    void (*release)(Managed* self);
    std::uint64_t flags;
    Tensor tensor;
};

// The same for a capsule.
struct OldManaged {
    Tensor tensor;
    void* context;
    void (*release)(OldManaged* self);
};

// The capsule `__dlpack_c_exchange_api__` of a tensor type.
struct ExchangeApi {
    struct {
        std::uint32_t major, minor;
    } version;
    void* previous;
    void* allocate;
    void* managed_from_object;
    int (*managed_to_object)(Managed* tensor, void** object);  // returns 0 if the object owns the memory
    int (*tensor_from_object)(void* object, Tensor* out);  // can be null; returns -1 for a Python error
    void* current_stream;
};

}  // namespace dlpack
