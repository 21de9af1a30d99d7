// Norms and products inside programs of XLA on a CPU, by its foreign function interface (FFI). No Python here, and no
// header of XLA. The structures below are the part of its binary interface (xla/ffi/api/c_api.h) that a handler of
// arrays needs.
#pragma once

#include <exception>
#include <new>

#include "norm.hpp"

namespace clip::xla {

// -- the interface, in versions 0.1 and later. Later minor versions append fields

struct Extension {
    std::size_t size;
    int type;  // 1 for Metadata
    Extension* next;
};

struct ApiVersion {
    std::size_t size;
    Extension* extensions;
    int major, minor;
};

struct Metadata {
    std::size_t size;
    ApiVersion version;
    std::uint32_t traits;
};

struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

struct Error;

struct ErrorArguments {
    std::size_t size;
    Extension* extensions;
    const char* message;
    int code;
};

struct Api {
    std::size_t size;
    Extension* extensions;
    ApiVersion version;
    const void* internal;
    Error* (*create_error)(ErrorArguments*);
};

struct Buffer {
    std::size_t size;
    Extension* extensions;
    int dtype;
    void* data;
    std::int64_t rank;
    const std::int64_t* dimensions;

    std::size_t count() const {
        std::size_t count = 1;
        for (std::int64_t axis = 0; axis < rank; ++axis) count *= static_cast<std::size_t>(dimensions[axis]);
        return count;
    }
};

// Arguments or results.
struct Buffers {
    std::size_t size;
    Extension* extensions;
    std::int64_t count;
    const int* types;  // 1 for a Buffer
    void** items;

    const Buffer& operator[](std::int64_t i) const { return *static_cast<const Buffer*>(items[i]); }
};

struct Name {
    const char* text;
    std::size_t length;
};

struct Scalar {
    int dtype;
    const void* value;
};

struct Attributes {
    std::size_t size;
    Extension* extensions;
    std::int64_t count;
    const int* types;  // 3 for a Scalar
    const Name* const* names;
    void** items;
};

struct CallFrame {
    std::size_t size;
    Extension* extensions;
    const Api* api;
    void* context;
    int stage;  // 3 for execution
    Buffers arguments, results;
    Attributes attributes;
};

enum Dtype { INT64 = 5, FLOAT16 = 10, FLOAT32 = 11, FLOAT64 = 12, COMPLEX64 = 15, BFLOAT16 = 16, COMPLEX128 = 18 };
constexpr int METADATA = 1, SCALAR = 3, EXECUTE = 3;
constexpr int INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8;  // error codes

// -- the handlers

inline std::int64_t attribute(const CallFrame& frame, const char* name) {
    for (std::int64_t i = 0; i < frame.attributes.count; ++i) {
        const Name& found = *frame.attributes.names[i];
        if (found.length != std::strlen(name) || std::memcmp(found.text, name, found.length)) continue;
        const auto& scalar = *static_cast<const Scalar*>(frame.attributes.items[i]);
        if (frame.attributes.types[i] == SCALAR && scalar.dtype == INT64)
            return *static_cast<const std::int64_t*>(scalar.value);
    }
    throw std::invalid_argument(std::string("unified_clip's kernels need the int64 attribute ") + name);
}

// Return an array's numbers.
inline Span span(const Buffer& buffer) {
    const char code = code_of(buffer.dtype, {{FLOAT16, 'e'}, {BFLOAT16, 'B'}, {FLOAT32, 'f'}, {FLOAT64, 'd'},
                                             {COMPLEX64, 'F'}, {COMPLEX128, 'D'}});
    return span_of(code, buffer.data, buffer.count());
}

// Write the norm over all arguments, or a norm for each argument, as float64. The axes of the result are batches,
// except the last axis with `per_tensor`. Every argument begins with these axes.
inline void write_norms(const CallFrame& frame) {
    const auto p = static_cast<int>(attribute(frame, "p"));
    const auto threads = static_cast<std::size_t>(attribute(frame, "threads"));
    const bool per_tensor = attribute(frame, "per_tensor");
    if (frame.results.count != 1 || frame.results[0].dtype != FLOAT64)
        throw std::invalid_argument("unified_clip's norm returns one float64 array");
    Spans spans;
    for (std::int64_t i = 0; i < frame.arguments.count; ++i) spans.push_back(span(frame.arguments[i]));
    const std::size_t norms = per_tensor ? spans.size() : 1, batches = norms ? frame.results[0].count() / norms : 0;
    clip::write_norms(spans, batches, p, per_tensor, threads, static_cast<double*>(frame.results[0].data));
}

// Write the product of each argument with its coefficient. The last argument has the coefficients: one for each other
// argument, or one for all.
inline void write_products(const CallFrame& frame) {
    const auto threads = static_cast<std::size_t>(attribute(frame, "threads"));
    const std::int64_t count = frame.arguments.count - 1;
    if (count < 1 || frame.results.count != count || frame.arguments[count].dtype != FLOAT64)
        throw std::invalid_argument("unified_clip's scaling needs a float64 array after the arrays, and as many results");
    const Buffer& factors = frame.arguments[count];
    const auto* first = static_cast<const double*>(factors.data);
    const std::vector<double> coefs(first, first + factors.count());
    if (coefs.size() != 1 && coefs.size() != static_cast<std::size_t>(count))
        throw std::invalid_argument("unified_clip's scaling needs one coefficient, or one for each array");
    Spans from, to;
    for (std::int64_t i = 0; i < count; ++i) {
        from.push_back(span(frame.arguments[i]));
        to.push_back(span(frame.results[i]));
        if (to.back().kernels != from.back().kernels || to.back().count != from.back().count)
            throw std::invalid_argument("a result of unified_clip's scaling needs the shape and dtype of its array");
    }
    clip::scale(from, to, coefs, threads);
}

// XLA calls this function to compute, and to read the version of the interface.
template <void (*compute)(const CallFrame&)>
Error* handle(CallFrame* frame) noexcept {
    if (frame->extensions && frame->extensions->type == METADATA) {
        ApiVersion& version = reinterpret_cast<MetadataExtension*>(frame->extensions)->metadata->version;
        version.major = 0;
        version.minor = 1;
        return nullptr;
    }
    if (frame->stage != EXECUTE) return nullptr;
    ErrorArguments error{sizeof(ErrorArguments), nullptr, nullptr, 0};
    try {
        compute(*frame);
        return nullptr;
    } catch (const std::bad_alloc&) {
        error.message = "unified_clip's kernels have no memory for what they compute with";
        error.code = RESOURCE_EXHAUSTED;
        return frame->api->create_error(&error);
    } catch (const std::exception& thrown) {
        error.message = thrown.what();
        error.code = INVALID_ARGUMENT;
        return frame->api->create_error(&error);
    }
}

}  // namespace clip::xla
