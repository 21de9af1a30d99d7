// The gradients of one call, as a list of spans.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <memory>
#include <new>
#include <string>

#include "dlpack.hpp"
#include "memory.hpp"
#include "span.hpp"

namespace clip {

namespace nb = nanobind;

// Buffers of Python's buffer protocol. The destructor releases them.
class BufferGuard {
   public:
    BufferGuard() = default;
    BufferGuard(BufferGuard&&) = default;  // and so no copies
    ~BufferGuard() {
        for (Py_buffer& view : views_) PyBuffer_Release(&view);
    }

    // Return null and set a Python error if the object rejects the request.
    const Py_buffer* acquire(PyObject* object, int flags) {
        if (!PyObject_GetBuffer(object, &views_.emplace_back(), flags)) return &views_.back();
        views_.pop_back();
        return nullptr;
    }

    const Py_buffer& operator[](std::size_t i) const { return views_[i]; }

   private:
    std::deque<Py_buffer> views_;  // which stay where they are: one may point into itself
};

// Return the kernels of a DLPack dtype, or null if it has none.
inline const Kernels* kernels_of(const dlpack::Tensor& tensor) {
    const auto [type, bits, lanes] = tensor.dtype;
    if (lanes != 1 || (type != dlpack::FLOAT && type != dlpack::BFLOAT)) return nullptr;
    if (type == dlpack::BFLOAT) return bits == 16 ? find_kernels('B') : nullptr;
    return bits == 16 ? find_kernels('e') : bits == 32 ? find_kernels('f') : bits == 64 ? find_kernels('d') : nullptr;
}

// Return the kernels of a buffer's format in the machine's byte order, or null. No format stands for bfloat16.
inline const Kernels* kernels_of(const Py_buffer& view) {
    const char* format = view.format ? view.format : "B";
    if (*format == '=' || *format == '@') ++format;
    return format[0] && !format[1] && *format != 'B' ? find_kernels(*format) : nullptr;
}

// Clear the error of a failed check, so that the caller takes the slower path. An interruption stays an error.
inline void clear_exception() {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
}

// Convert in IEEE arithmetic. `volatile` keeps the conversion in its place.
inline float to_float(double value) {
    volatile double wide = value;
    const Ieee ieee;
    volatile float result = static_cast<float>(wide);
    return result;
}

// -- results: new tensors over memory from the pool

// The description of a result, which precedes its numbers in memory.
struct Head {
    dlpack::Managed managed;        // for the exchange interface
    dlpack::OldManaged in_capsule;  // for a capsule
    Place place;
};

inline std::size_t head_size(std::int32_t ndim) {
    return round_up(sizeof(Head) + 2 * static_cast<std::size_t>(ndim) * sizeof(std::int64_t), LINE);
}

// Write the description of a tensor like `like` to `place`.
inline Head* describe(const Place& place, const dlpack::Tensor& like) {
    const auto ndim = static_cast<std::size_t>(like.ndim);
    auto* head = new (place.memory) Head{};
    auto* sizes = reinterpret_cast<std::int64_t*>(place.memory + sizeof(Head));
    dlpack::Tensor& tensor = head->managed.tensor;
    tensor = like;
    tensor.data = place.memory + head_size(like.ndim);
    tensor.byte_offset = 0;
    tensor.shape = std::copy(like.shape, like.shape + ndim, sizes) - ndim;
    if (like.strides) tensor.strides = std::copy(like.strides, like.strides + ndim, sizes + ndim) - ndim;
    head->place = place;
    return head;
}

// Release the memory of a result. `self` is in its head.
template <class Managed>
void release(Managed* self) {
    Place(static_cast<Head*>(self->context)->place).release();
}

inline nb::object to_tensor(const dlpack::ExchangeApi& api, Head* head) {
    head->managed.version = {api.version.major, api.version.minor};
    head->managed.context = head;
    head->managed.release = release;
    void* object = nullptr;
    if (api.managed_to_object(&head->managed, &object)) throw nb::python_error();
    return nb::steal(static_cast<PyObject*>(object));
}

// Return a capsule "dltensor", as `from_dlpack` functions take it.
inline nb::object to_capsule(Head* head) {
    constexpr const char* UNUSED = "dltensor";
    head->in_capsule = {head->managed.tensor, head, release};
    const nb::object capsule = nb::steal(PyCapsule_New(&head->in_capsule, UNUSED, [](PyObject* capsule) {
        if (!PyCapsule_IsValid(capsule, UNUSED)) return;  // its new owner renamed it, and releases the memory
        release(static_cast<dlpack::OldManaged*>(PyCapsule_GetPointer(capsule, UNUSED)));
    }));
    if (!capsule.is_valid()) throw nb::python_error();
    return capsule;
}

// Dense real tensors in CPU memory. None is empty.
class TensorList {
   public:
    nb::list tensors;
    bool has_float64 = false;

    // `api` describes tensors. Null: tensors have the buffer protocol.
    explicit TensorList(const dlpack::ExchangeApi* api) : api_(api) {}
    TensorList(const TensorList&) = delete;
    TensorList& operator=(const TensorList&) = delete;

    // Return false if the tensor does not belong here, or is `writable` and rejects writing.
    bool add(PyObject* tensor, bool writable) {
        if (!(api_ ? add_described(tensor) : add_buffer(tensor, writable))) return false;
        tensors.append(nb::handle(tensor));
        has_float64 |= spans_.back().kernels->code == 'd';
        return true;
    }

    bool overlaps() const {
        std::vector<std::pair<const char*, const char*>> ranges;
        ranges.reserve(spans_.size());
        for (const Span& span : spans_) ranges.emplace_back(span.data, span.data + span.bytes());
        std::sort(ranges.begin(), ranges.end());
        for (std::size_t i = 1; i < ranges.size(); ++i)
            if (ranges[i].first < ranges[i - 1].second) return true;
        return false;
    }

    // Return a list of some of the tensors.
    std::unique_ptr<TensorList> part(const std::vector<std::size_t>& indices) const {
        auto list = std::make_unique<TensorList>(api_);
        for (std::size_t i : indices)
            if (!list->add(nb::object(tensors[i]).ptr(), false))
                throw nb::value_error("a tensor of the list has changed its memory or its dtype");
        return list;
    }

    // Return the code of each tensor's dtype.
    std::string codes() const {
        std::string codes;
        for (const Span& span : spans_) codes += span.kernels->code;
        return codes;
    }

    const Spans& spans() const { return spans_; }
    bool is_short() const { return threads_for(total_count(spans_), 2) == 1; }
    bool makes_tensors() const { return api_; }

    // Return new tensors, or capsules for `from_dlpack`. `fill` writes their numbers.
    template <class Fill>
    nb::list results(const Fill& fill) const {
        std::vector<dlpack::Tensor> likes;
        std::vector<std::vector<std::int64_t>> shapes(spans_.size());
        std::vector<std::size_t> sizes;
        for (std::size_t i = 0; i < spans_.size(); ++i) {
            likes.push_back(like(i, shapes[i]));
            sizes.push_back(head_size(likes[i].ndim) + spans_[i].bytes());
        }
        Places places(sizes);
        Spans to;
        for (std::size_t i = 0; i < spans_.size(); ++i)
            to.push_back({places[i].memory + head_size(likes[i].ndim), spans_[i].count, spans_[i].kernels});
        fill(spans_, to);
        nb::list results;
        for (std::size_t i = 0; i < to.size(); ++i) {
            Head* head = describe(places[i], likes[i]);
            const nb::object result = api_ ? to_tensor(*api_, head) : to_capsule(head);
            places.take_over();
            results.append(result);
        }
        return results;
    }

    // Return a new 0-d tensor of float64 or float32. `value` is a number of that dtype.
    nb::object number(double value, bool is_float64) const {
        if (!api_) throw nb::value_error("this framework's tensors need `norm_from_host` of its backend");
        dlpack::Tensor like{};
        like.device.type = dlpack::CPU;
        like.dtype = {dlpack::FLOAT, static_cast<std::uint8_t>(is_float64 ? 64 : 32), 1};
        Places places({head_size(0) + sizeof value});
        Head* head = describe(places[0], like);
        if (is_float64)
            *static_cast<double*>(head->managed.tensor.data) = value;
        else
            *static_cast<float*>(head->managed.tensor.data) = to_float(value);
        const nb::object tensor = to_tensor(*api_, head);
        places.take_over();
        return tensor;
    }

   private:
    bool add_described(PyObject* tensor) {
        dlpack::Tensor found;
        if (api_->tensor_from_object(tensor, &found)) {
            clear_exception();
            return false;
        }
        const Kernels* kernels = kernels_of(found);
        if (found.device.type != dlpack::CPU || !kernels || !found.data) return false;
        if (found.ndim >= static_cast<int>(MAX_AXES)) return false;  // the core has an error for it
        if (!is_dense(static_cast<std::size_t>(found.ndim), found.shape, found.strides, 1)) return false;
        std::size_t count = 1;
        for (std::int32_t axis = 0; axis < found.ndim; ++axis) count *= static_cast<std::size_t>(found.shape[axis]);
        return add_span(static_cast<char*>(found.data) + found.byte_offset, count, kernels);
    }

    bool add_buffer(PyObject* tensor, bool writable) {
        const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        const Py_buffer* view = buffers_.acquire(tensor, flags);
        if (!view) {
            clear_exception();
            return false;
        }
        const Kernels* kernels = kernels_of(*view);
        if (!kernels || view->ndim >= static_cast<int>(MAX_AXES)) return false;
        if (!is_dense(static_cast<std::size_t>(view->ndim), view->shape, view->strides, view->itemsize)) return false;
        return add_span(static_cast<char*>(view->buf), static_cast<std::size_t>(view->len / view->itemsize), kernels);
    }

    bool add_span(char* data, std::size_t count, const Kernels* kernels) {
        if (count) spans_.push_back({data, count, kernels});
        return count;
    }

    // Return the description of a result like tensor `i`. A buffer's shape is copied to `shape`.
    dlpack::Tensor like(std::size_t i, std::vector<std::int64_t>& shape) const {
        dlpack::Tensor like{};
        if (api_) {
            if (api_->tensor_from_object(nb::object(tensors[i]).ptr(), &like)) throw nb::python_error();
            return like;
        }
        const Py_buffer& view = buffers_[i];
        if (!PyBuffer_IsContiguous(&view, 'C')) throw nb::value_error("a capsule needs an array in C order");
        like.device.type = dlpack::CPU;
        like.ndim = view.ndim;
        like.dtype = {dlpack::FLOAT, static_cast<std::uint8_t>(8 * view.itemsize), 1};
        shape.assign(view.shape, view.shape + view.ndim);
        like.shape = shape.data();
        return like;
    }

    const dlpack::ExchangeApi* api_;
    BufferGuard buffers_;
    Spans spans_;
};

}  // namespace clip
