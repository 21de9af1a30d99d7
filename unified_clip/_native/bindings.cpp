// The functions that Python calls. unified_clip/_compute/kernels.py has the same in NumPy.

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "collector.hpp"
#include "elementwise.hpp"
#include "interpreter_lock.hpp"
#include "norm.hpp"
#include "tensorflow.hpp"
#include "xla.hpp"

namespace {

using namespace clip;

// Call `work` without the interpreter lock if it takes longer than releasing the lock.
template <class Work>
auto unlocked(const Spans& spans, const Work& work) {
    std::optional<Unlocked> released;
    if (total_count(spans) >= PIECE) released.emplace();
    return work();
}

// Return the kernels that a code names: 'F' and 'D' name those of a complex number's parts.
const Kernels& kernels_named(char code, const char* allowed) {
    const Kernels* kernels = find_kernels(code == 'F' ? 'f' : code == 'D' ? 'd' : code);
    if (!kernels || !std::strchr(allowed, code))
        throw nb::value_error((std::string("a code is one of ") + allowed).c_str());
    return *kernels;
}

bool is_complex(char code) { return code == 'F' || code == 'D'; }

constexpr char COMPLEX_TOO[] = "eBfdFD";

// Arrays, with a code for the dtype of each. Without an order, they are read as their memory runs.
class Arrays {
   public:
    Spans spans;

    Arrays(const nb::list& arrays, const std::string& codes, const char* allowed, bool writable = false) {
        if (nb::len(arrays) != codes.size()) throw nb::value_error("a code is needed for each buffer");
        for (std::size_t i = 0; i < codes.size(); ++i) {
            const Kernels& kernels = kernels_named(codes[i], allowed);
            const int flags = PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
            const Py_buffer* view = buffers_.acquire(nb::object(arrays[i]).ptr(), flags);
            if (!view) throw nb::python_error();
            spans.push_back(span(*view, kernels, is_complex(codes[i])));
        }
    }

    Arrays unordered() && {
        for (Span& span : spans) flatten(span);
        return std::move(*this);
    }

   private:
    // A complex number is two real ones along a last axis.
    static Span span(const Py_buffer& view, const Kernels& kernels, bool is_complex) {
        if (static_cast<std::size_t>(view.itemsize) != (is_complex ? 2 : 1) * kernels.size)
            throw nb::value_error("a buffer's items do not have the size of its code");
        if (view.ndim >= static_cast<int>(MAX_AXES)) throw nb::value_error("a buffer has too many axes");
        Span span{static_cast<char*>(view.buf), static_cast<std::size_t>(view.len) / kernels.size, &kernels};
        if (!PyBuffer_IsContiguous(&view, 'C')) {
            span.shape.assign(view.shape, view.shape + view.ndim);
            span.steps.assign(view.strides, view.strides + view.ndim);
            if (is_complex) span.shape.push_back(2), span.steps.push_back(static_cast<std::int64_t>(kernels.size));
        }
        return span;
    }

    BufferGuard buffers_;
};

Method method_named(const std::string& name) {
    if (name == "blocks") return Method::BLOCKS;
    if (name == "compensated") return Method::COMPENSATED;
    if (name == "exact") return Method::EXACT;
    throw nb::value_error("a method is 'blocks', 'compensated' or 'exact'");
}

nb::tuple power_sum_of(const Spans& spans, int p, const std::string& method, std::size_t threads) {
    Accumulator sum = unlocked(spans, [&, how = method_named(method)] { return power_sum(spans, p, how, threads); });
    const std::string bytes = sum.bytes();
    return nb::make_tuple(nb::bytes(bytes.data(), bytes.size()), sum.nan, sum.infinite);
}

double max_abs_of(const Spans& spans, std::size_t threads) {
    return unlocked(spans, [&] { return max_abs(spans, threads); });
}

// Return a function that writes changed numbers of one list to another.
auto scaling(double coef, std::size_t threads) {
    return [=](const Spans& from, const Spans& to) { unlocked(from, [&] { scale(from, to, {coef}, threads); }); };
}

auto scaling_each(const std::vector<double>& coefs, std::size_t threads) {
    return [=](const Spans& from, const Spans& to) {
        if (coefs.size() != from.size()) throw nb::value_error("a coefficient is needed for each tensor");
        unlocked(from, [&] { scale(from, to, coefs, threads); });
    };
}

auto clamping(const Bounds& low, const Bounds& high, std::size_t threads) {
    return [=](const Spans& from, const Spans& to) { unlocked(from, [&] { clamp(from, to, low, high, threads); }); };
}

// Define a method that returns changed tensors, and one whose name ends in `_`, which changes them in place.
template <class Change, class... Arguments>
void define(nb::class_<TensorList>& list, const std::string& name, Change (*change)(Arguments...)) {
    list.def(name.c_str(),
             [=](const TensorList& self, Arguments... arguments) { return self.results(change(arguments...)); });
    list.def((name + "_").c_str(),
             [=](const TensorList& self, Arguments... arguments) { change(arguments...)(self.spans(), self.spans()); });
}

// Write to arrays of the same shapes: in the order of the memory where both arrays have the same.
template <class Change>
void write(Arrays from, Arrays to, const Change& change) {
    for (std::size_t i = 0; i < from.spans.size(); ++i) {
        Span &x = from.spans[i], &out = to.spans[i];
        if (x.count != out.count) throw nb::value_error("a result has another length than its buffer");
        if (x.steps == out.steps && x.shape == out.shape) flatten(x), flatten(out);
    }
    change(from.spans, to.spans);
}

void slice_sums_of(nb::handle buffer, const std::string& code, const std::vector<bool>& kept, nb::handle sums,
                   std::size_t threads) {
    if (code.size() != 1) throw nb::value_error("a code is one of eBfF");
    const Kernels& kernels = kernels_named(code[0], "eBfF");
    BufferGuard buffers;
    const Py_buffer* x = buffers.acquire(buffer.ptr(), PyBUF_STRIDES);
    const Py_buffer* out = x ? buffers.acquire(sums.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) : nullptr;
    if (!out) throw nb::python_error();
    if (kept.size() != static_cast<std::size_t>(x->ndim)) throw nb::value_error("`kept` needs a bool for each axis");
    std::vector<Axis> axes(kept.size());
    std::int64_t slices = 1;
    for (std::size_t axis = kept.size(); axis-- > 0;) {
        axes[axis] = {x->shape[axis], x->strides[axis], kept[axis] ? slices : 0};
        if (kept[axis]) slices *= x->shape[axis];
    }
    const bool complex_numbers = is_complex(code[0]);
    if (complex_numbers) axes.push_back({2, sizeof(float), 0});
    if (x->itemsize != static_cast<Py_ssize_t>((complex_numbers ? 2 : 1) * kernels.size) ||
        out->len != slices * static_cast<Py_ssize_t>(sizeof(double)))
        throw nb::value_error("the buffer or the sums do not have the size that goes with the code and the axes");
    if (!x->len) return;
    const Unlocked released;
    slice_sums(kernels, static_cast<const char*>(x->buf), static_cast<double*>(out->buf), std::move(axes), threads);
}

}  // namespace

NB_MODULE(_kernels, module) {
    using namespace nb::literals;
    nb::set_leak_warnings(false);  // a traceback that outlives the interpreter is no leak of this module
    module.doc() = "Compiled kernels of the host path. unified_clip/_compute/kernels.py has the same in NumPy.";

    module.def(
        "power_sum",
        [](const nb::list& buffers, const std::string& codes, int p, const std::string& method, std::size_t threads) {
            const Arrays arrays = Arrays(buffers, codes, p == 2 ? COMPLEX_TOO : CODES).unordered();
            return power_sum_of(arrays.spans, p, method, threads);
        },
        "buffers"_a, "codes"_a, "p"_a, "method"_a, "threads"_a,
        "Return the sum of |x|**p (p is 1 or 2) as little-endian bytes in units of 2**-2148, and whether there is a "
        "NaN and an infinity. The error of method 'blocks' (not for float64) is below 2**-40 of the sum, that of "
        "'compensated' below 2**-80, and 'exact' has none.");
    module.def(
        "max_abs",
        [](const nb::list& buffers, const std::string& codes, std::size_t threads) {
            return max_abs_of(Arrays(buffers, codes, CODES).unordered().spans, threads);
        },
        "buffers"_a, "codes"_a, "threads"_a, "Return the largest magnitude, or NaN if there is a NaN.");
    module.def(
        "scale",
        [](const nb::list& buffers, const nb::list& results, const std::string& codes, double coef,
           std::size_t threads) {
            write({buffers, codes, COMPLEX_TOO}, {results, codes, COMPLEX_TOO, true}, scaling(coef, threads));
        },
        "buffers"_a, "results"_a, "codes"_a, "coef"_a, "threads"_a,
        "Write every number times `coef` into the results, which may be the buffers. A `coef` of 1 copies.");
    module.def(
        "clamp",
        [](const nb::list& buffers, const nb::list& results, const std::string& codes, const Bounds& low,
           const Bounds& high, std::size_t threads) {
            write({buffers, codes, CODES}, {results, codes, CODES, true}, clamping(low, high, threads));
        },
        "buffers"_a, "results"_a, "codes"_a, "low"_a, "high"_a, "threads"_a,
        "Write every number, or the bound that it exceeds, into the results. Round each bound to e, B, f and d.");
    module.def("slice_sums", &slice_sums_of, "buffer"_a, "code"_a, "kept"_a, "sums"_a, "threads"_a,
               "Add the squares of an array, not float64, to float64 zeros: one per slice along the `kept` axes.");

    module.def("norm", [](const nb::list& buffers, const std::string& codes, int p, bool is_float64,
                          std::size_t threads) {
            const Arrays arrays = Arrays(buffers, codes, p == 2 ? COMPLEX_TOO : CODES).unordered();
            return unlocked(arrays.spans, [&] { return norm(arrays.spans, p, is_float64, threads); });
        },
        "buffers"_a, "codes"_a, "p"_a, "is_float64"_a, "threads"_a,
        "Return the p-norm (p is 1 or 2), correctly rounded to float32, or to float64. A float64 buffer needs the latter.");
    module.attr("xla_norm") = nb::steal(PyCapsule_New(reinterpret_cast<void*>(&xla::handle), nullptr, nullptr));
    module.def("register_tensorflow", &tensorflow::register_operations,
               "Register the operations UnifiedClipNorm and UnifiedClipScale. Return whether this TensorFlow takes them.");

    nb::class_<TensorList> list(module, "TensorList", "Dense real tensors in CPU memory.");
    list.def_ro("tensors", &TensorList::tensors)
        .def_ro("has_float64", &TensorList::has_float64)
        .def_prop_ro("makes_tensors", &TensorList::makes_tensors)
        .def_prop_ro("is_short", &TensorList::is_short, "Whether one thread computes it, however many there are.")
        .def_prop_ro("codes", &TensorList::codes)
        .def("part", &TensorList::part, "indices"_a, "Return a list of some of the tensors.")
        .def("number", &TensorList::number, "value"_a, "is_float64"_a, "Return a new 0-d tensor.")
        .def("power_sum", [](const TensorList& self, int p, const std::string& method, std::size_t threads) {
            return power_sum_of(self.spans(), p, method, threads);
        })
        .def("max_abs", [](const TensorList& self, std::size_t threads) { return max_abs_of(self.spans(), threads); })
        .def("square_sums", [](const TensorList& self, std::size_t threads) {
            return unlocked(self.spans(), [&] { return square_sums(self.spans(), threads); });
        }, "Return the sum of squares of each tensor, and its relative error. Raise ValueError for float64.");
    define(list, "scale", scaling);
    define(list, "scale_each", scaling_each);
    define(list, "clamp", clamping);

    nb::class_<Collector>(module, "Collector", "Collects a framework's plain tensors. None if a tensor is not plain.")
        .def(nb::init<nb::object, nb::object, nb::object, const Collector::Checks&, const Collector::Check&>(),
             "tensor_type"_a, "parameter_type"_a.none(), "exchange"_a.none(), "methods"_a, "recording"_a,
             "`methods`: names of methods, and their results for plain tensors. `recording`: the attribute, and its "
             "value, of tensors that require a gradient.")
        .def("of_parameters", &Collector::of_parameters, "items"_a, "Collect the gradients of parameters.")
        .def("of_tensors", &Collector::of_tensors, "items"_a, "recording"_a, "writable"_a)
        .def("of_param_grads", &Collector::of_param_grads, "items"_a, "Collect gradients of (parameter, gradient).");
}
