// What Python calls: see unified_clip/_compute/kernels.py, which has the same in NumPy.

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "interpreter_lock.hpp"
#include "lane.hpp"

namespace {

using namespace clip;

// The interpreter lock is released for what takes longer than that.
class WithoutLock {
   public:
    explicit WithoutLock(const std::vector<Run>& runs) {
        if (total_of(runs) >= PIECE) released_.emplace();
    }

   private:
    std::optional<Unlocked> released_;
};

// Arrays with a code for each, as runs of numbers.
struct Arrays {
    Arrays(const nb::list& objects, const std::string& codes, bool writable, const char* allowed = CODES) {
        if (nb::len(objects) != codes.size()) throw nb::value_error("a code is needed for each buffer");
        if (codes.find_first_not_of(allowed) != std::string::npos)
            throw nb::value_error((std::string("a code is one of ") + allowed).c_str());
        std::size_t i = 0;
        for (nb::handle object : objects) {
            const Py_buffer* view = held.hold(object.ptr(), PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0));
            if (!view) throw nb::python_error();
            runs.push_back(run(*view, codes[i++]));
        }
    }

    std::vector<Run> runs;

   private:
    // A complex number is two real ones along a last axis.
    static Run run(const Py_buffer& view, char code) {
        const bool is_complex = code == COMPLEX64 || code == COMPLEX128;
        if (is_complex) code = code == COMPLEX64 ? FLOAT32 : FLOAT64;
        const std::size_t size = size_of(code);
        if (static_cast<std::size_t>(view.itemsize) != (is_complex ? 2 * size : size))
            throw nb::value_error("a buffer's items do not have the size that its code says");
        Run found{static_cast<char*>(view.buf), static_cast<std::size_t>(view.len) / size, code};
        if (view.ndim >= static_cast<int>(MOST_AXES)) throw nb::value_error("a buffer has too many axes");
        if (!PyBuffer_IsContiguous(&view, 'C')) {
            found.shape.assign(view.shape, view.shape + view.ndim);
            found.steps.assign(view.strides, view.strides + view.ndim);
            if (is_complex) found.shape.push_back(2), found.steps.push_back(static_cast<std::int64_t>(size));
        }
        return found;
    }

    Held held;
};

nb::tuple told(Accumulator sum) {
    const std::string bytes = sum.bytes();
    return nb::make_tuple(nb::bytes(bytes.data(), bytes.size()), sum.nan, sum.infinite);
}

Sum sum_called(const std::string& name) {
    if (name == "blocks") return Sum::BLOCKS;
    if (name == "pairs") return Sum::PAIRS;
    if (name == "exact") return Sum::EXACT;
    throw nb::value_error("a sum is in blocks, pairs or exact");
}

nb::tuple summed(const std::vector<Run>& runs, int p, const std::string& name, std::size_t threads) {
    const Sum how = sum_called(name);
    Accumulator sum;
    {
        const WithoutLock without(runs);
        sum = power_sum(runs, p, how, threads);
    }
    return told(sum);
}

void slice_sums_into(nb::handle buffer, const std::string& code, const std::vector<bool>& kept, nb::handle sums,
                     std::size_t threads) {
    Held held;
    const Py_buffer* x = held.hold(buffer.ptr(), PyBUF_STRIDES);
    const Py_buffer* out = x ? held.hold(sums.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) : nullptr;
    if (!out) throw nb::python_error();
    const bool is_complex = code == "F";
    if (code.size() != 1 || (!is_complex && std::string("eBf").find(code) == std::string::npos))
        throw nb::value_error("a code is one of eBfF");
    const char real = is_complex ? static_cast<char>(FLOAT32) : code[0];
    if (kept.size() != static_cast<std::size_t>(x->ndim)) throw nb::value_error("say of each axis whether it is kept");
    std::vector<Axis> axes(kept.size());
    std::int64_t slices = 1;
    for (std::size_t axis = kept.size(); axis-- > 0;) {
        axes[axis] = {x->shape[axis], x->strides[axis], kept[axis] ? slices : 0};
        if (kept[axis]) slices *= x->shape[axis];
    }
    if (is_complex) axes.push_back({2, sizeof(float), 0});
    if (x->itemsize != static_cast<Py_ssize_t>((is_complex ? 2 : 1) * size_of(real)) ||
        out->len != slices * static_cast<Py_ssize_t>(sizeof(double)))
        throw nb::value_error("the buffer or the sums do not have the size that goes with the code and the axes");
    if (!x->len) return;
    const Unlocked released;
    slice_sums(real, static_cast<const char*>(x->buf), static_cast<double*>(out->buf), std::move(axes), threads);
}

double greatest_in(const std::vector<Run>& runs, std::size_t threads) {
    const WithoutLock without(runs);
    return greatest(runs, threads);
}

// What to do to the numbers of a list.
struct Scale {
    double coef;
    std::size_t threads;
    void operator()(const std::vector<Run>& from, const std::vector<Run>& to) const {
        const WithoutLock without(from);
        scale(from, to, coef, threads);
    }
};

struct ScaleEach {
    const std::vector<double>& coefs;
    std::size_t threads;
    void operator()(const std::vector<Run>& from, const std::vector<Run>& to) const {
        if (coefs.size() != from.size()) throw nb::value_error("a coefficient is needed for each tensor");
        const WithoutLock without(from);
        scale_each(from, to, coefs, threads);
    }
};

struct Clamp {
    Bounds low, high;
    std::size_t threads;
    void operator()(const std::vector<Run>& from, const std::vector<Run>& to) const {
        const WithoutLock without(from);
        clamp(from, to, low, high, threads);
    }
};

// Arrays of the same shapes, to be computed from and written to: in the order of the memory where both have the same.
template <class Change>
void write(Arrays from, Arrays to, const Change& change) {
    for (std::size_t i = 0; i < from.runs.size(); ++i) {
        Run &x = from.runs[i], &out = to.runs[i];
        if (x.count != out.count) throw nb::value_error("a result has another length than its buffer");
        if (x.steps == out.steps && x.shape == out.shape) straighten(x), straighten(out);
    }
    change(from.runs, to.runs);
}

// Arrays in whatever order their memory has.
Arrays unordered(const nb::list& buffers, const std::string& codes, const char* allowed = CODES) {
    Arrays arrays(buffers, codes, false, allowed);
    for (Run& run : arrays.runs) straighten(run);
    return arrays;
}

}  // namespace

NB_MODULE(_kernels, module) {
    using namespace nb::literals;
    nb::set_leak_warnings(false);  // at exit a traceback that somebody keeps is no fault of ours
    module.doc() = "Compiled kernels of the host path: see unified_clip/_compute/kernels.py, which has the same in NumPy.";
    module.def(
        "power_sum",
        [](const nb::list& buffers, const std::string& codes, int p, const std::string& how, std::size_t threads) {
            return summed(unordered(buffers, codes, p == 2 ? ALL_CODES : CODES).runs, p, how, threads);
        },
        "buffers"_a, "codes"_a, "p"_a, "how"_a, "threads"_a,
        "The sum of |x|**p (p is 1 or 2) as little-endian bytes in units of 2**-2148, and whether there is a NaN and an "
        "infinity. `how`: 'blocks' (no float64), which may lose 2**-40 of it, 'pairs', which may lose 2**-80, 'exact'.");
    module.def(
        "greatest",
        [](const nb::list& buffers, const std::string& codes, std::size_t threads) {
            return greatest_in(unordered(buffers, codes).runs, threads);
        },
        "buffers"_a, "codes"_a, "threads"_a, "The greatest magnitude; NaN if there is any.");
    module.def(
        "scale",
        [](const nb::list& buffers, const nb::list& results, const std::string& codes, double coef,
           std::size_t threads) {
            write(Arrays(buffers, codes, false, ALL_CODES), Arrays(results, codes, true, ALL_CODES),
                  Scale{coef, threads});
        },
        "buffers"_a, "results"_a, "codes"_a, "coef"_a, "threads"_a,
        "Write every number times coef into the results, which may be the buffers; the number itself where coef is 1.");
    module.def(
        "clamp",
        [](const nb::list& buffers, const nb::list& results, const std::string& codes, const Bounds& low,
           const Bounds& high, std::size_t threads) {
            write(Arrays(buffers, codes, false), Arrays(results, codes, true), Clamp{low, high, threads});
        },
        "buffers"_a, "results"_a, "codes"_a, "low"_a, "high"_a, "threads"_a,
        "Write every number, or the bound that it exceeds, into the results. A bound is given in the formats e, B, f, d.");

    module.def(
        "slice_sums", &slice_sums_into, "buffer"_a, "code"_a, "kept"_a, "sums"_a, "threads"_a,
        "Add the squares of an array, not float64, to float64 zeros: one for each slice along the axes that are kept.");

    nb::class_<Lane>(module, "Lane", "Dense real gradients in CPU memory, found in one go.")
        .def_ro("tensors", &Lane::tensors)
        .def_ro("has_float64", &Lane::has_float64)
        .def_prop_ro("makes_tensors", &Lane::makes_tensors)
        .def_prop_ro("codes", &Lane::codes)
        .def("part", &Lane::part, "indices"_a, "Some of the tensors.")
        .def(
            "each_square_sum",
            [](const Lane& lane, std::size_t threads) {
                const WithoutLock without(lane.runs());
                return each_square_sum(lane.runs(), threads);
            },
            "threads"_a,
            "Return the sum of squares of each tensor, and how much of it may be lost. Raise ValueError for float64, "
            "which has no such sums.")
        .def(
            "scale_each_",
            [](const Lane& lane, const std::vector<double>& coefs, std::size_t threads) {
                ScaleEach{coefs, threads}(lane.runs(), lane.runs());
            },
            "coefs"_a, "threads"_a, "Each tensor by its own coefficient, which is not 1, in place.")
        .def(
            "scale_each",
            [](const Lane& lane, const std::vector<double>& coefs, std::size_t threads) {
                return lane.results(ScaleEach{coefs, threads});
            },
            "coefs"_a, "threads"_a, "New tensors, or capsules for `from_dlpack`.")
        .def("number", &Lane::number, "value"_a, "is_float64"_a, "A new 0-d tensor.")
        .def(
            "power_sum",
            [](const Lane& lane, int p, const std::string& how, std::size_t threads) {
                return summed(lane.runs(), p, how, threads);
            },
            "p"_a, "how"_a, "threads"_a)
        .def(
            "greatest", [](const Lane& lane, std::size_t threads) { return greatest_in(lane.runs(), threads); },
            "threads"_a)
        .def(
            "scale_",
            [](const Lane& lane, double coef, std::size_t threads) {
                Scale{coef, threads}(lane.runs(), lane.runs());
            },
            "coef"_a, "threads"_a, "In place.")
        .def(
            "scale",
            [](const Lane& lane, double coef, std::size_t threads) { return lane.results(Scale{coef, threads}); },
            "coef"_a, "threads"_a, "New tensors, or capsules for `from_dlpack`.")
        .def(
            "clamp_",
            [](const Lane& lane, const Bounds& low, const Bounds& high, std::size_t threads) {
                Clamp{low, high, threads}(lane.runs(), lane.runs());
            },
            "low"_a, "high"_a, "threads"_a, "In place.")
        .def(
            "clamp",
            [](const Lane& lane, const Bounds& low, const Bounds& high, std::size_t threads) {
                return lane.results(Clamp{low, high, threads});
            },
            "low"_a, "high"_a, "threads"_a, "New tensors, or capsules for `from_dlpack`.");

    nb::class_<Gatherer>(module, "Gatherer", "Lists of a framework's plain parameters or tensors as lanes; else None.")
        .def(nb::init<nb::object, nb::object, nb::object, const Gatherer::Checks&, const Gatherer::Check&>(),
             "tensor_type"_a, "parameter_type"_a.none(), "exchange"_a.none(), "methods"_a, "recording"_a,
             "`methods`: of tensors, and what they return for plain ones. `recording`: the attribute of a tensor, and "
             "its value, by which derivatives are wanted.")
        .def("of_parameters", &Gatherer::of_parameters, "items"_a,
             "The gradients of parameters, each in a place of its own.")
        .def("of_tensors", &Gatherer::of_tensors, "items"_a, "recording"_a, "writable"_a)
        .def("of_pairs", &Gatherer::of_pairs, "pairs"_a, "The gradients of (parameter, gradient) pairs.");
}
