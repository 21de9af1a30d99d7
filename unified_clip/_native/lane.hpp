// The gradients of one call, found in one go where every one of them is plain, and clipped together.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.hpp"
#include "lists.hpp"
#include "memory.hpp"

namespace clip {

namespace nb = nanobind;

// Buffers of Python's buffer protocol, held until this goes.
class Held {
   public:
    Held() = default;
    Held(Held&&) = default;  // and so no copies
    ~Held() {
        for (Py_buffer& view : views_) PyBuffer_Release(&view);
    }

    // Null and a Python error where the object refuses.
    const Py_buffer* hold(PyObject* object, int flags) {
        if (!PyObject_GetBuffer(object, &views_.emplace_back(), flags)) return &views_.back();
        views_.pop_back();
        return nullptr;
    }

    const Py_buffer& operator[](std::size_t i) const { return views_[i]; }

   private:
    std::deque<Py_buffer> views_;  // which stay where they are: one may point into itself
};

inline std::size_t count_of(std::int32_t ndim, const std::int64_t* shape) {
    std::size_t count = 1;
    for (std::int32_t axis = 0; axis < ndim; ++axis) count *= static_cast<std::size_t>(shape[axis]);
    return count;
}

inline char code_of(const dlpack::Tensor& tensor) {
    const auto& dtype = tensor.dtype;
    if (dtype.lanes != 1) return 0;
    if (dtype.code == dlpack::BFLOAT) return dtype.bits == 16 ? BFLOAT16 : 0;
    if (dtype.code != dlpack::FLOAT) return 0;
    return dtype.bits == 16 ? FLOAT16 : dtype.bits == 32 ? FLOAT32 : dtype.bits == 64 ? FLOAT64 : 0;
}

// The code of a buffer's format, in the machine's byte order; bfloat16 has none.
inline char code_of(const Py_buffer& view) {
    const char* format = view.format ? view.format : "B";
    if (*format == '=' || *format == '@') ++format;
    const bool one = format[0] && !format[1];
    return one && (*format == FLOAT16 || *format == FLOAT32 || *format == FLOAT64) ? *format : 0;
}

// After a look that failed: somebody looks closer, unless the program is being interrupted.
inline void clear_exception() {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
}

// Whether an attribute is there and has another value; an error counts as well.
inline bool differs(PyObject* object, PyObject* name, PyObject* expected) {
    PyObject* value = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
    const int found = PyObject_GetOptionalAttr(object, name, &value);
#else
    const int found = _PyObject_LookupAttr(object, name, &value);  // without the cost of an exception
#endif
    const nb::object held = nb::steal(value);
    clear_exception();
    return found < 0 || (held.is_valid() && held.ptr() != expected);
}

// -- new tensors over memory of ours

// What stands before a result's numbers: what its new owner is told, and its shape.
struct Head {
    dlpack::Managed managed;      // for the exchange interface
    dlpack::OldManaged in_capsule;  // for a capsule
    Place place;
};

inline std::size_t head_size(std::int32_t ndim) {
    return round_up(sizeof(Head) + 2 * static_cast<std::size_t>(ndim) * sizeof(std::int64_t), LINE);
}

// Describes the memory at `place`, whose numbers follow the head, as a tensor like another.
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

inline nb::object exchanged(const dlpack::ExchangeApi& api, Head* head) {
    head->managed.version = {api.version.major, api.version.minor};
    head->managed.context = head;
    head->managed.release = [](dlpack::Managed* self) { Place(static_cast<Head*>(self->context)->place).release(); };
    void* object = nullptr;
    if (api.managed_to_object(&head->managed, &object)) throw nb::python_error();
    return nb::steal(static_cast<PyObject*>(object));
}

// A capsule "dltensor", as `from_dlpack` functions take it.
inline nb::object in_capsule(Head* head) {
    constexpr const char* UNUSED = "dltensor";
    dlpack::OldManaged& managed = head->in_capsule;
    managed.tensor = head->managed.tensor;
    managed.context = head;
    managed.release = [](dlpack::OldManaged* self) { Place(static_cast<Head*>(self->context)->place).release(); };
    const nb::object capsule = nb::steal(PyCapsule_New(&managed, UNUSED, [](PyObject* capsule) {
        if (!PyCapsule_IsValid(capsule, UNUSED)) return;  // whoever took it renamed it, and releases it
        auto* unused = static_cast<dlpack::OldManaged*>(PyCapsule_GetPointer(capsule, UNUSED));
        unused->release(unused);
    }));
    if (!capsule.is_valid()) throw nb::python_error();
    return capsule;
}

// Dense real gradients that are not empty, in CPU memory, and where their numbers are.
class Lane {
   public:
    nb::list tensors;
    bool has_float64 = false;

    // `api`: how to look at a tensor; null where tensors have the buffer protocol.
    explicit Lane(const dlpack::ExchangeApi* api) : api_(api) {}
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    // False where the tensor is otherwise, or cannot be written although that is wanted.
    bool add(PyObject* tensor, bool writable) {
        if (!(api_ ? add_exchanged(tensor) : add_buffer(tensor, writable))) return false;
        tensors.append(nb::handle(tensor));
        has_float64 |= runs_.back().code == FLOAT64;
        return true;
    }

    bool overlaps() const {
        std::vector<std::pair<const char*, const char*>> spans;
        spans.reserve(runs_.size());
        for (const Run& run : runs_) spans.emplace_back(run.data, run.data + run.count * size_of(run.code));
        std::sort(spans.begin(), spans.end());
        for (std::size_t i = 1; i < spans.size(); ++i)
            if (spans[i].first < spans[i - 1].second) return true;
        return false;
    }

    // Some of the tensors.
    std::unique_ptr<Lane> part(const std::vector<std::size_t>& indices) const {
        auto found = std::make_unique<Lane>(api_);
        for (std::size_t i : indices)
            if (!found->add(nb::object(tensors[i]).ptr(), false))
                throw nb::value_error("a tensor is not plain any more");
        return found;
    }

    std::string codes() const {
        std::string found;
        for (const Run& run : runs_) found += run.code;
        return found;
    }

    const std::vector<Run>& runs() const { return runs_; }
    bool makes_tensors() const { return api_; }

    // New tensors of the framework, or capsules for it, with what `fill` writes to their runs.
    template <class Fill>
    nb::list results(const Fill& fill) const {
        std::vector<dlpack::Tensor> likes;
        std::vector<std::vector<std::int64_t>> shapes(runs_.size());
        std::vector<std::size_t> sizes;
        for (std::size_t i = 0; i < runs_.size(); ++i) {
            likes.push_back(like(i, shapes[i]));
            sizes.push_back(head_size(likes[i].ndim) + runs_[i].count * size_of(runs_[i].code));
        }
        Places places(sizes);
        std::vector<Run> to;
        for (std::size_t i = 0; i < runs_.size(); ++i)
            to.push_back({places[i].memory + head_size(likes[i].ndim), runs_[i].count, runs_[i].code});
        fill(runs_, to);
        nb::list made;
        for (std::size_t i = 0; i < to.size(); ++i) {
            Head* head = describe(places[i], likes[i]);
            const nb::object tensor = api_ ? exchanged(*api_, head) : in_capsule(head);
            places.take_over();
            made.append(tensor);
        }
        return made;
    }

    // A new 0-d tensor of the framework, float64 or float32.
    nb::object number(double value, bool is_float64) const {
        if (!api_) throw nb::value_error("tensors of this framework are made by its adapter");
        dlpack::Tensor like{};
        like.device.type = dlpack::CPU;
        like.dtype = {dlpack::FLOAT, static_cast<std::uint8_t>(is_float64 ? 64 : 32), 1};
        Places places({head_size(0) + sizeof value});
        Head* head = describe(places[0], like);
        if (is_float64)
            *static_cast<double*>(head->managed.tensor.data) = value;
        else
            *static_cast<float*>(head->managed.tensor.data) = narrowed(value);
        const nb::object tensor = exchanged(*api_, head);
        places.take_over();
        return tensor;
    }

   private:
    bool add_exchanged(PyObject* tensor) {
        dlpack::Tensor found;
        if (api_->tensor_from_object(tensor, &found)) {
            clear_exception();
            return false;
        }
        const char code = code_of(found);
        if (found.device.type != dlpack::CPU || !code || !found.data) return false;
        if (found.ndim >= static_cast<int>(MOST_AXES)) return false;  // the core says so
        if (!is_dense(static_cast<std::size_t>(found.ndim), found.shape, found.strides, 1)) return false;
        return add_run(static_cast<char*>(found.data) + found.byte_offset, count_of(found.ndim, found.shape), code);
    }

    bool add_buffer(PyObject* tensor, bool writable) {
        const Py_buffer* view = held_.hold(tensor, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0));
        if (!view) {
            clear_exception();
            return false;
        }
        const char code = code_of(*view);
        if (!code || view->ndim >= static_cast<int>(MOST_AXES)) return false;
        if (!is_dense(static_cast<std::size_t>(view->ndim), view->shape, view->strides, view->itemsize)) return false;
        return add_run(static_cast<char*>(view->buf), static_cast<std::size_t>(view->len / view->itemsize), code);
    }

    bool add_run(char* data, std::size_t count, char code) {
        if (count) runs_.push_back({data, count, code});
        return count;
    }

    // The description of a tensor, for a result like it; `shape` is room for a buffer's.
    dlpack::Tensor like(std::size_t i, std::vector<std::int64_t>& shape) const {
        dlpack::Tensor found{};
        if (api_) {
            if (api_->tensor_from_object(nb::object(tensors[i]).ptr(), &found)) throw nb::python_error();
            return found;
        }
        const Py_buffer& view = held_[i];
        if (!PyBuffer_IsContiguous(&view, 'C')) throw nb::value_error("capsules are for arrays in C order");
        found.device.type = dlpack::CPU;
        found.ndim = view.ndim;
        found.dtype = {dlpack::FLOAT, static_cast<std::uint8_t>(8 * view.itemsize), 1};
        shape.assign(view.shape, view.shape + view.ndim);
        found.shape = shape.data();
        return found;
    }

    const dlpack::ExchangeApi* api_;
    Held held_;
    std::vector<Run> runs_;
};

// What a framework's plain parameters and tensors are, and lists of them as a lane. Null where anything in a list is
// otherwise: then the caller looks closer.
class Gatherer {
   public:
    using Check = std::pair<std::string, bool>;
    using Checks = std::vector<Check>;

    Gatherer(nb::object tensor_type, nb::object parameter_type, nb::object exchange, const Checks& methods,
             const Check& recording)
        : tensor_type_(std::move(tensor_type)),
          parameter_type_(std::move(parameter_type)),
          recording_(name(recording.first), truth(!recording.second)) {
        if (!exchange.is_none()) {
            api_ = static_cast<const dlpack::ExchangeApi*>(nb::cast<nb::capsule>(exchange).data());
            if (api_->version.major != 1 || !api_->tensor_from_object || !api_->managed_to_object)
                throw nb::value_error("this version of DLPack's exchange interface is not known");
        }
        for (const auto& [method, plain] : methods) methods_.emplace_back(name(method), truth(plain));
    }

    // The gradients of parameters, which are leaves and to be clipped, each in a place of its own.
    std::unique_ptr<Lane> of_parameters(const nb::object& items) const {
        auto lane = std::make_unique<Lane>(api_);
        for (nb::handle item : items) {
            if (item.is_none()) continue;
            if (!is_parameter(item) || differs(item.ptr(), is_leaf_.ptr(), Py_True)) return nullptr;
            const nb::object tensor = nb::getattr(item, grad_);
            if (!tensor.is_none() && !(is_plain(tensor) && lane->add(tensor.ptr(), true))) return nullptr;
        }
        return lane->overlaps() ? nullptr : std::move(lane);
    }

    // Tensors and None. `recording`: no derivative may be wanted by any. `writable`: each has a place of its own.
    std::unique_ptr<Lane> of_tensors(const nb::object& items, bool recording, bool writable) const {
        auto lane = std::make_unique<Lane>(api_);
        for (nb::handle item : items)
            if (!item.is_none() && !add(*lane, item, recording, writable)) return nullptr;
        return writable && lane->overlaps() ? nullptr : std::move(lane);
    }

    // The gradients of (parameter, gradient) pairs.
    std::unique_ptr<Lane> of_pairs(const nb::object& pairs) const {
        auto lane = std::make_unique<Lane>(api_);
        for (nb::handle pair : pairs) {
            if (!PyTuple_CheckExact(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2) return nullptr;
            const nb::handle parameter = PyTuple_GET_ITEM(pair.ptr(), 0), tensor = PyTuple_GET_ITEM(pair.ptr(), 1);
            if (!is_parameter(parameter) || !(tensor.is_none() || add(*lane, tensor, false, false))) return nullptr;
        }
        return lane;
    }

   private:
    static nb::object name(const std::string& text) { return nb::steal(PyUnicode_InternFromString(text.c_str())); }
    static nb::object truth(bool value) { return nb::borrow(value ? Py_True : Py_False); }

    bool is_parameter(nb::handle item) const {
        return item.type().is(parameter_type_) && !differs(item.ptr(), need_clip_.ptr(), Py_True);
    }

    bool is_plain(nb::handle tensor) const {
        if (!tensor.type().is(tensor_type_)) return false;
        for (const auto& [method, plain] : methods_) {
            const nb::object told = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), method.ptr()));
            if (!told.is_valid()) throw nb::python_error();
            if (!told.is(plain)) return false;
        }
        return true;
    }

    bool add(Lane& lane, nb::handle tensor, bool recording, bool writable) const {
        if (!is_plain(tensor)) return false;
        if (recording && differs(tensor.ptr(), recording_.first.ptr(), recording_.second.ptr())) return false;
        return lane.add(tensor.ptr(), writable);
    }

    nb::object tensor_type_, parameter_type_;
    const dlpack::ExchangeApi* api_ = nullptr;
    std::vector<std::pair<nb::object, nb::object>> methods_;
    std::pair<nb::object, nb::object> recording_;
    nb::object grad_ = name("grad"), is_leaf_ = name("is_leaf"), need_clip_ = name("need_clip");
};

}  // namespace clip
