// Choose the tensors whose memory the kernels may read and write.
#pragma once

#include <cstdlib>

#include "device_list.hpp"

namespace clip {

// Return whether a test forces the device path. os.environ changes this environment, too.
inline bool is_path_forced() {
    const char* setting = std::getenv("UNIFIED_CLIP_PATH");
    return setting && *setting;
}

// Collects a framework's plain tensors into a list. If a tensor is not plain, the result is null, and the caller checks
// the tensors one by one.
class Collector {
   public:
    using Check = std::pair<std::string, bool>;
    using Checks = std::vector<Check>;
    using Result = std::unique_ptr<TensorList>;

    Collector(nb::object tensor_type, nb::object parameter_type, nb::object exchange, const Checks& methods,
              const Check& recording)
        : tensor_type_(std::move(tensor_type)),
          parameter_type_(std::move(parameter_type)),
          recording_(name(recording.first), truth(!recording.second)) {
        if (!exchange.is_none()) {
            api_ = static_cast<const dlpack::ExchangeApi*>(nb::cast<nb::capsule>(exchange).data());
            if (api_->version.major != 1 || !api_->tensor_from_object || !api_->managed_to_object)
                throw nb::value_error("this version of DLPack's exchange interface is not supported");
        }
        for (const auto& [method, plain] : methods) methods_.emplace_back(name(method), truth(plain));
    }

    // Collect the gradients of leaf parameters in a list or a tuple. Return null if two gradients overlap, if `need_clip`
    // excludes one, or if one could be in `main_grad`.
    Result of_parameters(const nb::object& items) const {
        return is_path_forced() ? nullptr : gradients_of(items, std::make_unique<TensorList>(api_));
    }

    // Collect the gradients of leaf parameters on one GPU. `on_cpu`: use CPU memory instead, for tests.
    std::unique_ptr<DeviceList> of_parameters_on_gpu(const nb::object& items, bool on_cpu) const {
        return api_ ? gradients_of(items, std::make_unique<DeviceList>(*api_, on_cpu)) : nullptr;
    }

    // Collect the tensors that are not None. `recording`: reject tensors that require a gradient. `writable`: reject
    // overlaps.
    Result of_tensors(const nb::object& items, bool recording, bool writable) const {
        return is_path_forced() ? nullptr : tensors_of(items, recording, writable, std::make_unique<TensorList>(api_));
    }

    // Collect tensors that do not overlap, on one GPU.
    std::unique_ptr<DeviceList> of_tensors_on_gpu(const nb::object& items, bool recording, bool on_cpu) const {
        return api_ ? tensors_of(items, recording, true, std::make_unique<DeviceList>(*api_, on_cpu)) : nullptr;
    }

    Result of_param_grads(const nb::object& items) const {
        if (is_path_forced()) return nullptr;
        auto list = std::make_unique<TensorList>(api_);
        const bool plain = need_clip_is_plain();
        for (nb::handle item : items) {
            if (!PyTuple_CheckExact(item.ptr()) || PyTuple_Size(item.ptr()) != 2) return nullptr;
            const nb::handle parameter = PyTuple_GetItem(item.ptr(), 0);
            const nb::handle tensor = PyTuple_GetItem(item.ptr(), 1);
            if (!is_parameter(parameter, plain)) return nullptr;
            if (!tensor.is_none() && !add(*list, tensor, false, false)) return nullptr;
        }
        return list;
    }

   private:
    template <class List>
    std::unique_ptr<List> gradients_of(const nb::object& items, std::unique_ptr<List> list) const {
        if (!is_sequence(items)) return nullptr;
        const bool plain = need_clip_is_plain();
        for (nb::handle item : items) {
            if (item.is_none()) continue;
            if (!is_parameter(item, plain) || differs(item, is_leaf_, Py_True)) return nullptr;
            const nb::object tensor = nb::getattr(item, grad_);
            if (tensor.is_none() ? PyObject_HasAttr(item.ptr(), main_grad_.ptr())
                                 : !(is_plain(tensor) && list->add(tensor.ptr(), true)))
                return nullptr;
        }
        return list->overlaps() ? nullptr : std::move(list);
    }

    template <class List>
    std::unique_ptr<List> tensors_of(const nb::object& items, bool recording, bool writable,
                                     std::unique_ptr<List> list) const {
        if (!is_sequence(items)) return nullptr;
        for (nb::handle item : items)
            if (!item.is_none() && !add(*list, item, recording, writable)) return nullptr;
        return writable && list->overlaps() ? nullptr : std::move(list);
    }

    // Return false for an iterator, which could be read only once.
    static bool is_sequence(nb::handle items) { return PyList_CheckExact(items.ptr()) || PyTuple_CheckExact(items.ptr()); }

    static nb::object name(const std::string& text) { return nb::steal(PyUnicode_InternFromString(text.c_str())); }
    static nb::object truth(bool value) { return nb::borrow(value ? Py_True : Py_False); }

    // Return whether an attribute exists and has another value, or its lookup fails.
    static bool differs(nb::handle object, const nb::object& name, PyObject* expected) {
        const nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
        if (value.is_valid()) return value.ptr() != expected;
        const bool failed = !PyErr_ExceptionMatches(PyExc_AttributeError);
        clear_exception();
        return failed;
    }

    // Return whether `need_clip` can only be in the `__dict__` of parameters. Then PyObject_HasAttr can replace a slow
    // AttributeError. It would hide errors of the type's own code.
    bool need_clip_is_plain() const {
        if (!PyType_Check(parameter_type_.ptr())) return false;
        auto* type = reinterpret_cast<PyTypeObject*>(parameter_type_.ptr());
        return PyType_GetSlot(type, Py_tp_getattro) == reinterpret_cast<void*>(PyObject_GenericGetAttr) &&
               !PyObject_HasAttr(parameter_type_.ptr(), need_clip_.ptr());
    }

    bool is_parameter(nb::handle item, bool need_clip_is_plain) const {
        if (!item.type().is(parameter_type_)) return false;
        const bool absent = need_clip_is_plain && !PyObject_HasAttr(item.ptr(), need_clip_.ptr());
        return absent || !differs(item, need_clip_, Py_True);
    }

    bool is_plain(nb::handle tensor) const {
        if (!tensor.type().is(tensor_type_)) return false;
        for (const auto& [method, plain] : methods_) {
            PyObject* self = tensor.ptr();
            const nb::object result = nb::steal(PyObject_VectorcallMethod(method.ptr(), &self, 1, nullptr));
            if (!result.is_valid()) throw nb::python_error();
            if (!result.is(plain)) return false;
        }
        return true;
    }

    template <class List>
    bool add(List& list, nb::handle tensor, bool recording, bool writable) const {
        if (!is_plain(tensor)) return false;
        if (recording && differs(tensor, recording_.first, recording_.second.ptr())) return false;
        return list.add(tensor.ptr(), writable);
    }

    nb::object tensor_type_, parameter_type_;
    const dlpack::ExchangeApi* api_ = nullptr;
    std::vector<std::pair<nb::object, nb::object>> methods_;
    std::pair<nb::object, nb::object> recording_;
    nb::object grad_ = name("grad"), is_leaf_ = name("is_leaf"), need_clip_ = name("need_clip");
    nb::object main_grad_ = name("main_grad");
};

}  // namespace clip
