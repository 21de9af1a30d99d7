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
    BufferGuard(BufferGuard&&) = default;  // this also forbids copies
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
    std::size_t size() const { return views_.size(); }

   private:
    std::deque<Py_buffer> views_;  // a deque never moves its items, and a buffer can point into itself
};

// Return null if no kernel supports the dtype.
inline const Kernels* kernels_of(const dlpack::Tensor& tensor) {
    const auto [type, bits, lanes] = tensor.dtype;
    if (lanes != 1 || (type != dlpack::FLOAT && type != dlpack::BFLOAT)) return nullptr;
    if (type == dlpack::BFLOAT) return bits == 16 ? find_kernels('B') : nullptr;
    return bits == 16 ? find_kernels('e') : bits == 32 ? find_kernels('f') : bits == 64 ? find_kernels('d') : nullptr;
}

// Return null if no kernel supports the format. Without a format, the dtype is bfloat16.
inline const Kernels* kernels_of(const Py_buffer& view) {
    const char* format = view.format ? view.format : "B";
    if (*format == '=' || *format == '@') ++format;
    return format[0] && !format[1] && *format != 'B' ? find_kernels(*format) : nullptr;
}

// Return the numbers of an array in the order of its axes. A complex number is two real numbers along a last axis.
inline Span ordered_span(const Py_buffer& view, char code) {
    const Kernels* kernels = kernels_of(code);
    Span span{static_cast<char*>(view.buf), static_cast<std::size_t>(view.len) / kernels->size, kernels};
    if (!PyBuffer_IsContiguous(&view, 'C')) {
        span.shape.assign(view.shape, view.shape + view.ndim);
        span.steps.assign(view.strides, view.strides + view.ndim);
        if (is_complex(code)) span.shape.push_back(2), span.steps.push_back(static_cast<std::int64_t>(kernels->size));
    }
    return span;
}

// Clear the error of a failed check, so that the caller takes the slower path. Throw an error that is no Exception,
// such as KeyboardInterrupt.
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

// -- results: new tensors in memory of the pool

// The description of a result, which comes before its numbers in memory.
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

// Release the memory of a result, whose head contains `self`.
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

// Return a capsule "dltensor", for `from_dlpack`.
inline nb::object to_capsule(Head* head) {
    constexpr const char* UNUSED = "dltensor";
    head->in_capsule = {head->managed.tensor, head, release};
    const nb::object capsule = nb::steal(PyCapsule_New(&head->in_capsule, UNUSED, [](PyObject* capsule) {
        if (!PyCapsule_IsValid(capsule, UNUSED)) return;  // the new owner has renamed it, and releases the memory
        release(static_cast<dlpack::OldManaged*>(PyCapsule_GetPointer(capsule, UNUSED)));
    }));
    if (!capsule.is_valid()) throw nb::python_error();
    return capsule;
}

// Describe a tensor and its numbers in the order of the memory. Return false for an empty, sparse or complex tensor.
inline bool describe_dense(const dlpack::ExchangeApi& api, PyObject* tensor, dlpack::Tensor& found, Span& span) {
    if (api.tensor_from_object(tensor, &found)) {
        clear_exception();
        return false;
    }
    const Kernels* kernels = kernels_of(found);
    if (!kernels || !found.data) return false;
    if (found.ndim >= static_cast<int>(MAX_AXES)) return false;  // the core raises the error
    if (!is_dense(static_cast<std::size_t>(found.ndim), found.shape, found.strides, 1)) return false;
    std::size_t count = 1;
    for (std::int32_t axis = 0; axis < found.ndim; ++axis) count *= static_cast<std::size_t>(found.shape[axis]);
    span = {static_cast<char*>(found.data) + found.byte_offset, count, kernels};
    return count;
}

// Return whether two spans share memory.
inline bool overlap(const Spans& spans) {
    std::vector<std::pair<const char*, const char*>> ranges;
    ranges.reserve(spans.size());
    for (const Span& span : spans) ranges.emplace_back(span.data, span.data + span.bytes());
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i)
        if (ranges[i].first < ranges[i - 1].second) return true;
    return false;
}

// Tensors in CPU memory. A collector adds only dense real tensors that are not empty. Arrays can have gaps.
class TensorList {
   public:
    nb::list tensors;
    bool has_float64 = false;

    // `api` describes tensors. If `api` is null, tensors have the buffer protocol.
    explicit TensorList(const dlpack::ExchangeApi* api) : api_(api) {}
    TensorList(const TensorList&) = delete;
    TensorList& operator=(const TensorList&) = delete;

    // Return a list of arrays, with a code for the dtype of each.
    static std::unique_ptr<TensorList> of_arrays(const nb::list& arrays, const std::string& codes, bool writable) {
        if (nb::len(arrays) != codes.size()) throw nb::value_error("a code is needed for each array");
        auto list = std::make_unique<TensorList>(nullptr);
        for (std::size_t i = 0; i < codes.size(); ++i) list->add_array(nb::object(arrays[i]), codes[i], writable);
        return list;
    }

    // Return false if the list does not support the tensor, or if `writable` is set and the tensor is read-only.
    bool add(PyObject* tensor, bool writable) {
        return api_ ? add_described(tensor) : add_buffer(tensor, writable);
    }

    bool overlaps() const { return overlap(spans_); }

    std::unique_ptr<TensorList> part(const std::vector<std::size_t>& indices) const {
        auto list = std::make_unique<TensorList>(api_);
        for (std::size_t i : indices)
            if (!list->add(nb::object(tensors[i]).ptr(), false))
                throw nb::value_error("a tensor of the list has changed its memory or its dtype");
        return list;
    }

    const std::string& codes() const { return codes_; }

    const Spans& spans() const { return spans_; }

    // Throw for a list with complex numbers.
    const Spans& real_spans() const {
        for (char code : codes_)
            if (is_complex(code)) throw nb::value_error("complex numbers have only sums of squares, and products");
        return spans_;
    }

    const Py_buffer& array() const {
        if (buffers_.size() != 1) throw nb::value_error("slices are those of one array");
        return buffers_[0];
    }

    // Throw if an array is read-only, unless it is empty.
    void check_writable() const {
        for (std::size_t i = 0; i < buffers_.size(); ++i)
            if (buffers_[i].readonly && buffers_[i].len) throw nb::value_error("an array is read-only");
    }

    // Write changed numbers into arrays of the same shapes. If both arrays have the same order in memory, use this
    // order.
    template <class Change>
    void write(const nb::list& arrays, const Change& change) const {
        const auto results = of_arrays(arrays, codes_, true);
        if (api_) throw nb::value_error("results of these tensors are tensors, not arrays");
        Spans from, to;
        for (std::size_t i = 0; i < codes_.size(); ++i) {
            Span x = ordered_span(buffers_[i], codes_[i]), out = ordered_span(results->buffers_[i], codes_[i]);
            if (x.count != out.count) throw nb::value_error("a result has another length than its array");
            if (x.steps == out.steps && x.shape == out.shape) flatten(x), flatten(out);
            from.push_back(std::move(x));
            to.push_back(std::move(out));
        }
        change(from, to);
    }

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

    // Return a new 0-d tensor of float64 or float32. `value` is a number of this dtype.
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
        Span span;
        if (!describe_dense(*api_, tensor, found, span) || found.device.type != dlpack::CPU) return false;
        append(tensor, span.kernels->code, std::move(span));
        return true;
    }

    bool add_buffer(PyObject* tensor, bool writable) {
        const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        const Py_buffer* view = buffers_.acquire(tensor, flags);
        if (!view) {
            clear_exception();
            return false;
        }
        const Kernels* kernels = kernels_of(*view);
        if (!kernels || !view->len || view->ndim >= static_cast<int>(MAX_AXES)) return false;
        if (!is_dense(static_cast<std::size_t>(view->ndim), view->shape, view->strides, view->itemsize)) return false;
        append(tensor, kernels->code,
               {static_cast<char*>(view->buf), static_cast<std::size_t>(view->len / view->itemsize), kernels});
        return true;
    }

    void add_array(nb::handle array, char code, bool writable) {
        const Kernels* kernels = kernels_of(code);
        if (!kernels) throw nb::value_error("a code is one of eBfdFD");
        const Py_buffer* view = buffers_.acquire(array.ptr(), PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0));
        if (!view) throw nb::python_error();
        if (static_cast<std::size_t>(view->itemsize) != (is_complex(code) ? 2 : 1) * kernels->size)
            throw nb::value_error("an array's items do not have the size of its code");
        if (view->ndim >= static_cast<int>(MAX_AXES)) throw nb::value_error("an array has too many axes");
        Span span = ordered_span(*view, code);
        flatten(span);
        append(array, code, std::move(span));
    }

    void append(nb::handle tensor, char code, Span span) {
        tensors.append(tensor);
        codes_ += code;
        has_float64 |= span.kernels->code == 'd';
        spans_.push_back(std::move(span));
    }

    // Return the description of a result like tensor `i`. A buffer's shape is copied to `shape`.
    dlpack::Tensor like(std::size_t i, std::vector<std::int64_t>& shape) const {
        dlpack::Tensor like{};
        if (api_) {
            if (api_->tensor_from_object(nb::object(tensors[i]).ptr(), &like)) throw nb::python_error();
            return like;
        }
        const Py_buffer& view = buffers_[i];
        if (!PyBuffer_IsContiguous(&view, 'C') || !std::strchr("efd", codes_[i]))
            throw nb::value_error("a capsule needs a real array of NumPy's formats in C order");
        like.device.type = dlpack::CPU;
        like.ndim = view.ndim;
        like.dtype = {dlpack::FLOAT, static_cast<std::uint8_t>(8 * view.itemsize), 1};
        shape.assign(view.shape, view.shape + view.ndim);
        like.shape = shape.data();
        return like;
    }

    const dlpack::ExchangeApi* api_;
    BufferGuard buffers_;  // empty if `api` describes the tensors
    Spans spans_;          // in the order of the memory
    std::string codes_;    // as in `CODES` of unified_clip/_compute/kernels.py
};

}  // namespace clip
