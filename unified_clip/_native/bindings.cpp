// The functions that Python calls. unified_clip/_compute/kernels.py has the same functions in NumPy.

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <thread>

#if __has_include(<cxxabi.h>)
#include <cxxabi.h>
#endif

#include "collector.hpp"
#include "gpu.hpp"
#include "norm.hpp"
#include "tensorflow.hpp"
#include "torch.hpp"
#include "xla.hpp"

namespace {

using namespace clip;

// Releases the interpreter lock as long as this object lives.
//
// Up to version 3.13, Python ends a daemon thread that requests the lock during shutdown. glibc then unwinds the
// thread's stack, and aborts the process at the first C++ frame that catches every exception. So such a thread waits
// here until the process ends, as it does in Python 3.14.
class Unlocked {
   public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() {
#ifdef __GLIBCXX__
        try {
            PyEval_RestoreThread(state_);
        } catch (const abi::__forced_unwind&) {
            while (true) std::this_thread::sleep_for(std::chrono::hours(1));
        }
#else
        PyEval_RestoreThread(state_);
#endif
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    PyThreadState* const state_;
};

// Release the interpreter lock only if `work` takes longer than releasing the lock.
template <class Work>
auto unlocked(const Spans& spans, const Work& work) {
    std::optional<Unlocked> released;
    if (total_count(spans) >= PIECE) released.emplace();
    return work();
}

Method method_named(const std::string& name) {
    if (name == "blocks") return Method::BLOCKS;
    if (name == "compensated") return Method::COMPENSATED;
    if (name == "exact") return Method::EXACT;
    throw nb::value_error("a method is 'blocks', 'compensated' or 'exact'");
}

nb::tuple power_sum_of(const TensorList& list, int p, const std::string& method, std::size_t threads) {
    const Spans& spans = p == 2 ? list.spans() : list.real_spans();
    Accumulator sum = unlocked(spans, [&, how = method_named(method)] { return power_sum(spans, p, how, threads); });
    const std::string bytes = sum.bytes();
    return nb::make_tuple(nb::bytes(bytes.data(), bytes.size()), sum.nan, sum.infinite);
}

double max_abs_of(const TensorList& list, std::size_t threads) {
    return unlocked(list.real_spans(), [&] { return max_abs(list.spans(), threads); });
}

// Return a function that writes scaled numbers of one list to another list.
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

// Define two methods. The first returns changed tensors, or writes them into arrays. The second has a name that ends in
// `_`, and changes the tensors in place.
template <class Change, class... Arguments>
void define(nb::class_<TensorList>& list, const std::string& name, Change (*change)(Arguments...),
            const Spans& (TensorList::*spans)() const = &TensorList::spans) {
    list.def(name.c_str(), [=](const TensorList& self, Arguments... arguments) {
        (self.*spans)();
        return self.results(change(arguments...));
    });
    list.def(name.c_str(), [=](const TensorList& self, Arguments... arguments, const nb::list& results) {
        (self.*spans)();
        self.write(results, change(arguments...));
    });
    list.def((name + "_").c_str(), [=](const TensorList& self, Arguments... arguments) {
        self.check_writable();
        change(arguments...)((self.*spans)(), self.spans());
    });
}

struct NormAndCoefficient {
    double n, coef;
};

NormAndCoefficient measure(const TensorList& list, double threshold, double eps, bool infinite_norm_gives_nan,
                           std::size_t threads) {
    return unlocked(list.spans(), [&]() -> NormAndCoefficient {
        const Ieee ieee;
        const double n = norm(list.spans(), 2, list.has_float64, threads);
        return {n, coefficient(n, threshold, eps, infinite_norm_gives_nan)};
    });
}

nb::object norm_object(const TensorList& list, double n, const nb::object& number) {
    return list.makes_tensors() ? list.number(n, list.has_float64) : number(n, list.has_float64 ? "float64" : "float32");
}

// The norm's tensor is made before the first write, because nothing may fail after it.
nb::object clip_in_place(const TensorList& list, double threshold, double eps, bool infinite_norm_gives_nan,
                         std::size_t threads, const nb::object& number, const nb::object& announce) {
    list.check_writable();
    const auto [n, coef] = measure(list, threshold, eps, infinite_norm_gives_nan, threads);
    nb::object result = norm_object(list, n, number);
    if (coef == 1) return result;
    announce(list.tensors);
    scaling(coef, threads)(list.spans(), list.spans());
    return result;
}

nb::tuple clip_to_new(const TensorList& list, double threshold, double eps, bool infinite_norm_gives_nan,
                      std::size_t threads) {
    const auto [n, coef] = measure(list, threshold, eps, infinite_norm_gives_nan, threads);
    return nb::make_tuple(list.results(scaling(coef, threads)), list.number(n, list.has_float64));
}

nb::object total_norm(const TensorList& list, std::size_t threads, const nb::object& number) {
    const double n = unlocked(list.spans(), [&] { return norm(list.spans(), 2, list.has_float64, threads); });
    return norm_object(list, n, number);
}

void slice_sums_of(const TensorList& list, const std::vector<bool>& kept, nb::handle sums, std::size_t threads) {
    const Py_buffer& x = list.array();
    const Kernels& kernels = *list.spans()[0].kernels;
    reject_float64(list.spans());
    BufferGuard buffers;
    const Py_buffer* out = buffers.acquire(sums.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    if (!out) throw nb::python_error();
    if (kept.size() != static_cast<std::size_t>(x.ndim)) throw nb::value_error("`kept` needs a bool for each axis");
    std::vector<Axis> axes(kept.size());
    std::int64_t slices = 1;
    for (std::size_t axis = kept.size(); axis-- > 0;) {
        axes[axis] = {x.shape[axis], x.strides[axis], kept[axis] ? slices : 0};
        if (kept[axis]) slices *= x.shape[axis];
    }
    if (is_complex(list.codes()[0])) axes.push_back({2, sizeof(float), 0});
    if (out->len != slices * static_cast<Py_ssize_t>(sizeof(double)))
        throw nb::value_error("the sums do not have the size of the kept axes");
    if (!x.len) return;
    const Unlocked released;
    slice_sums(kernels, static_cast<const char*>(x.buf), static_cast<double*>(out->buf), std::move(axes), threads);
}

}  // namespace

NB_MODULE(_kernels, module) {
    using namespace nb::literals;
    nb::set_leak_warnings(false);  // a traceback can outlive the interpreter, which is no leak of this module
    module.doc() = "Compiled kernels of the host path. unified_clip/_compute/kernels.py has the same in NumPy.";

    module.attr("instruction_set") = INSTRUCTION_SET.name;
    const auto capsule = [](auto* function) {
        return nb::steal(PyCapsule_New(reinterpret_cast<void*>(function), nullptr, nullptr));
    };
    module.attr("xla_norm") = capsule(&xla::handle<xla::write_norms>);
    module.attr("xla_scale") = capsule(&xla::handle<xla::write_products>);
    module.def("register_tensorflow", &tensorflow::register_operations,
               "Register the operations UnifiedClipNorm and UnifiedClipScale. Return whether this TensorFlow takes them.");

    module.def("register_torch", &torch::register_operators,
               "Implement unified_clip::kernel_norm and unified_clip::scale_. Return whether this PyTorch takes them.");

    nb::class_<TensorList> list(module, "TensorList", "Tensors in CPU memory.");
    list.def_static("of_arrays", &TensorList::of_arrays, "arrays"_a, "codes"_a, "writable"_a = false,
                    "Return a list of NumPy arrays, of any strides, with a code for the dtype of each.")
        .def_ro("tensors", &TensorList::tensors)
        .def_ro("has_float64", &TensorList::has_float64)
        .def_prop_ro("makes_tensors", &TensorList::makes_tensors)
        .def_prop_ro("is_short", &TensorList::is_short, "Whether one thread computes it, however many there are.")
        .def_prop_ro("codes", &TensorList::codes)
        .def("part", &TensorList::part, "indices"_a, "Return a list of some of the tensors of a collector.")
        .def("number", &TensorList::number, "value"_a, "is_float64"_a, "Return a new 0-d tensor.")
        .def("power_sum", &power_sum_of, "p"_a, "method"_a, "threads"_a,
             "Return the sum of |x|**p (p is 1 or 2) as little-endian bytes in units of 2**-2148, and whether there is "
             "a NaN and an infinity. The error of method 'blocks' (not for float64) is below 2**-40 of the sum, that of "
             "'compensated' below 2**-80, and 'exact' has none.")
        .def("norm", [](const TensorList& self, int p, bool is_float64, std::size_t threads) {
            const Spans& spans = p == 2 ? self.spans() : self.real_spans();
            return unlocked(spans, [&] { return norm(spans, p, is_float64, threads); });
        }, "p"_a, "is_float64"_a, "threads"_a,
             "Return the p-norm (p is 1 or 2), correctly rounded to float32, or to float64, which float64 numbers need.")
        .def("clip_", &clip_in_place, "threshold"_a, "eps"_a, "infinite_norm_gives_nan"_a, "threads"_a, "number"_a,
             "announce"_a, "Clip all tensors by their total 2-norm, and return the norm. `number` makes it a tensor if "
             "this list cannot. `announce` gets the tensors before they change.")
        .def("total_norm", &total_norm, "threads"_a, "number"_a, "Return the total 2-norm as a tensor.")
        .def("clip", &clip_to_new, "threshold"_a, "eps"_a, "infinite_norm_gives_nan"_a, "threads"_a,
             "Return new tensors, clipped by the total 2-norm, and the norm.")
        .def("max_abs", &max_abs_of, "threads"_a, "Return the largest magnitude, or NaN if there is a NaN.")
        .def("square_sums", [](const TensorList& self, std::size_t threads) {
            return unlocked(self.spans(), [&] { return square_sums(self.spans(), threads); });
        }, "Return the sum of squares of each tensor, and its relative error. Raise ValueError for float64.")
        .def("slice_sums", &slice_sums_of, "kept"_a, "sums"_a, "threads"_a,
             "Add the squares of the only array, not float64, to float64 zeros: one per slice along the `kept` axes.");
    // These lines define scale, scale_, scale_each, scale_each_, clamp and clamp_. A coefficient of 1 copies. The bounds are
    // rounded to e, B, f and d.
    define(list, "scale", scaling);
    define(list, "scale_each", scaling_each);
    define(list, "clamp", clamping, &TensorList::real_spans);

    nb::class_<DeviceList>(module, "DeviceList", "Tensors in the memory of one GPU.")
        .def(nb::init<int, const std::vector<std::uintptr_t>&, const std::vector<std::size_t>&, const std::string&>(),
             "device"_a, "addresses"_a, "counts"_a, "codes"_a, "`counts`: of real numbers. `codes`: as of arrays.")
        .def_ro("tensors", &DeviceList::tensors)
        .def_prop_ro("device", &DeviceList::device)
        .def_ro("has_float64", &DeviceList::has_float64);

    using Addresses = std::vector<std::uintptr_t>;
    using Bounds = std::array<double, gpu::DTYPES>;
    const auto at = [](std::uintptr_t address) { return reinterpret_cast<double*>(address); };
    const auto sums_at = [](std::uintptr_t address) { return reinterpret_cast<gpu::Sum*>(address); };
    const auto any_at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
    nb::class_<gpu::Gpu>(module, "Gpu", "The kernels for NVIDIA GPUs. Addresses and streams are integers.")
        .def(nb::init<const std::string&, nb::object, gpu::u32, std::size_t>(), "driver"_a, "compile"_a, "threads"_a,
             "fast_from"_a)
        .def_prop_ro("driver_version", &gpu::Gpu::driver_version)
        .def("capability", &gpu::Gpu::capability, "device"_a)
        .def("numbers", &gpu::Gpu::numbers, "list"_a, "each"_a, "Return how many float64 the sums of a list need.")
        .def("add", [=](gpu::Gpu& self, const DeviceList& list, gpu::u32 order, std::uintptr_t sums, std::uintptr_t stream) {
            const gpu::Sums added = self.add(list, order, false, true, sums_at(sums), any_at(stream));
            return nb::make_tuple(added.count, added.depth);
        }, "list"_a, "order"_a, "sums"_a, "stream"_a, "Return the number of sums, three float64 each, and their depth.")
        .def("finish", [=](gpu::Gpu& self, int device, gpu::u32 order, bool wide, std::uintptr_t sums, gpu::u32 count,
                           std::size_t depth, std::uintptr_t norm, std::uintptr_t rounded, std::uintptr_t stream) {
            self.finish(device, order, wide, sums_at(sums), {count, 0, depth}, at(norm), any_at(rounded), any_at(stream));
        }, "device"_a, "order"_a, "wide"_a, "sums"_a, "count"_a, "depth"_a, "norm"_a, "rounded"_a, "stream"_a)
        .def("norm", [=](gpu::Gpu& self, const DeviceList& list, gpu::u32 order, bool each, std::uintptr_t sums,
                         std::uintptr_t norms, std::uintptr_t rounded, std::uintptr_t stream) {
            self.norm(list, order, each, sums_at(sums), at(norms), any_at(rounded), any_at(stream));
        }, "list"_a, "order"_a, "each"_a, "sums"_a, "norms"_a, "rounded"_a, "stream"_a)
        .def("clip", [=](gpu::Gpu& self, const DeviceList& list, gpu::u32 order, double threshold, double eps, bool nan,
                         std::uintptr_t sums, std::uintptr_t rounded, const Addresses& targets, std::uintptr_t stream) {
            self.clip(list, order, threshold, eps, nan, sums_at(sums), any_at(rounded), targets, any_at(stream));
        }, "list"_a, "order"_a, "threshold"_a, "eps"_a, "infinite_norm_gives_nan"_a, "sums"_a, "rounded"_a, "targets"_a,
             "stream"_a)
        .def("scale", [=](gpu::Gpu& self, const DeviceList& list, std::uintptr_t coefs, bool each,
                          const Addresses& targets, std::uintptr_t stream) {
            self.scale(list, at(coefs), each, targets, any_at(stream));
        }, "list"_a, "coefs"_a, "each"_a, "targets"_a, "stream"_a)
        .def("clamp", [=](gpu::Gpu& self, const DeviceList& list, const Bounds& low, const Bounds& high,
                          const Addresses& targets, std::uintptr_t stream) {
            self.clamp(list, low, high, targets, any_at(stream));
        }, "list"_a, "low"_a, "high"_a, "targets"_a, "stream"_a);

    nb::class_<Collector>(module, "Collector", "Collects a framework's plain tensors. None if a tensor is not plain.")
        .def(nb::init<nb::object, nb::object, nb::object, const Collector::Checks&, const Collector::Check&>(),
             "tensor_type"_a, "parameter_type"_a.none(), "exchange"_a.none(), "methods"_a, "recording"_a,
             "`methods`: names of methods, and their results for plain tensors. `recording`: the attribute, and its "
             "value, of tensors that require a gradient.")
        .def("of_parameters", &Collector::of_parameters, "items"_a.none(), "Collect the gradients of parameters.")
        .def("of_parameters_on_gpu", &Collector::of_parameters_on_gpu, "items"_a, "on_cpu"_a = false,
             "Collect gradients of parameters that are all in the memory of one GPU, or for tests in CPU memory.")
        .def("of_tensors", &Collector::of_tensors, "items"_a.none(), "recording"_a, "writable"_a)
        .def("of_tensors_on_gpu", &Collector::of_tensors_on_gpu, "items"_a, "recording"_a, "on_cpu"_a = false)
        .def("of_param_grads", &Collector::of_param_grads, "items"_a, "Collect gradients of (parameter, gradient).");
}
