// What Python calls: kernels over whole lists of buffers, shared among threads by their total length.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cfenv>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "dlpack.hpp"
#include "kernels.hpp"

namespace nb = nanobind;

namespace {

using clip::Accumulator;
using clip::BLOCK;

enum Code : char { FLOAT16 = 'e', BFLOAT16 = 'B', FLOAT32 = 'f', FLOAT64 = 'd' };

// Numbers to be worth another thread.
constexpr std::size_t SHARE = 1 << 16;

std::size_t size_of(char code) { return code == FLOAT64 ? 8 : code == FLOAT32 ? 4 : 2; }

struct Run {
    char* data;
    std::size_t count;
    char code;
};

// The memory of a list of objects with the buffer protocol, held until this goes.
class Buffers {
   public:
    Buffers(const nb::list& objects, const std::string& codes, bool writable) {
        const std::size_t length = nb::len(objects);
        if (length != codes.size()) throw nb::value_error("a code is needed for each buffer");
        if (codes.find_first_not_of("eBfd") != std::string::npos) throw nb::value_error("a code is e, B, f or d");
        held_.reserve(length);
        runs.reserve(length);
        for (std::size_t i = 0; i < length; ++i) add(nb::object(objects[i]).ptr(), codes[i], writable);
    }

    std::vector<Run> runs;
    std::size_t total = 0;

   private:
    struct Release {
        void operator()(Py_buffer* view) const {
            PyBuffer_Release(view);
            delete view;
        }
    };

    void add(PyObject* object, char code, bool writable) {
        auto asked = std::make_unique<Py_buffer>();
        if (PyObject_GetBuffer(object, asked.get(), PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)))
            throw nb::python_error();
        const Py_buffer& view = *held_.emplace_back(asked.release());
        if (static_cast<std::size_t>(view.itemsize) != size_of(code))
            throw nb::value_error("a buffer's items do not have the size that its code says");
        const std::size_t count = static_cast<std::size_t>(view.len) / size_of(code);
        if (count) runs.push_back({static_cast<char*>(view.buf), count, code});
        total += count;
    }

    std::vector<std::unique_ptr<Py_buffer, Release>> held_;
};

// IEEE arithmetic for as long as it lives: a thread may have been told to flush subnormal numbers to zero.
class Ieee {
   public:
    Ieee() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~Ieee() { std::fesetenv(&saved_); }

   private:
    std::fenv_t saved_;
};

// Calls work(run, begin, end, share) for each part of each run, with shares of equal length on threads of their own.
template <class Work>
void in_shares(const std::vector<Run>& runs, std::size_t total, std::size_t shares, const Work& work) {
    const auto share_work = [&](std::size_t share) {
        const Ieee ieee;
        std::size_t begin = total * share / shares, end = total * (share + 1) / shares, start = 0;
        for (std::size_t i = 0; i < runs.size() && start < end; ++i) {
            const std::size_t stop = start + runs[i].count;
            if (stop > begin) work(i, std::max(begin, start) - start, std::min(end, stop) - start, share);
            start = stop;
        }
    };
    std::vector<std::thread> threads;
    threads.reserve(shares);
    std::size_t inline_from = 1;
    try {
        for (; inline_from < shares; ++inline_from) threads.emplace_back(share_work, inline_from);
    } catch (const std::exception&) {  // no more threads, or no memory for them: this one does the rest
    }
    share_work(0);
    for (std::size_t share = inline_from; share < shares; ++share) share_work(share);
    for (std::thread& thread : threads) thread.join();
}

std::size_t shares_for(std::size_t total, std::size_t threads) {
    return std::max<std::size_t>(1, std::min(threads, total / SHARE));
}

template <class T>
const T* at(const Run& run, std::size_t index) {
    return reinterpret_cast<const T*>(run.data) + index;
}

template <class T>
T* at(Run& run, std::size_t index) {
    return reinterpret_cast<T*>(run.data) + index;
}

double block_sum(const Run& run, std::size_t begin, std::size_t count, bool squared) {
    switch (run.code) {
        case FLOAT32:
            return (squared ? clip::squares_float32 : clip::magnitudes_float32)(at<float>(run, begin), count);
        case BFLOAT16:
            return (squared ? clip::squares_bfloat16 : clip::magnitudes_bfloat16)(at<std::uint16_t>(run, begin), count);
        default:
            return (squared ? clip::squares_float16 : clip::magnitudes_float16)(at<std::uint16_t>(run, begin), count);
    }
}

void exact_sum(Accumulator& sum, const Run& run, std::size_t begin, std::size_t count, bool squared) {
    switch (run.code) {
        case FLOAT64:
            return clip::add_exactly<clip::Float64>(sum, at<double>(run, begin), count, squared);
        case FLOAT32:
            return clip::add_exactly<clip::Float32>(sum, at<float>(run, begin), count, squared);
        case BFLOAT16:
            return clip::add_exactly<clip::BFloat16>(sum, at<std::uint16_t>(run, begin), count, squared);
        default:
            return clip::add_exactly<clip::Float16>(sum, at<std::uint16_t>(run, begin), count, squared);
    }
}

// Numbers of several short runs that are added up in float64 before the sum goes into the accumulator.
struct Partial {
    Accumulator sum;
    double block = 0;
    std::size_t in_block = 0;

    void add(double value, std::size_t count) {
        if (in_block + count > BLOCK) flush();
        block += value;
        in_block += count;
    }

    void flush() {
        if (in_block) sum.add(block);
        block = 0;
        in_block = 0;
    }
};

nb::tuple power_sum(const std::vector<Run>& runs, std::size_t total, int p, bool exact, std::size_t threads) {
    const bool squared = p == 2;
    std::vector<Partial> partial(shares_for(total, threads));
    {
        const nb::gil_scoped_release released;
        in_shares(runs, total, partial.size(),
                  [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t share) {
                      if (exact) return exact_sum(partial[share].sum, runs[i], begin, end - begin, squared);
                      for (std::size_t start = begin; start < end; start += BLOCK) {
                          const std::size_t count = std::min(BLOCK, end - start);
                          partial[share].add(block_sum(runs[i], start, count, squared), count);
                      }
                  });
        for (Partial& each : partial) each.flush();
        for (std::size_t share = 1; share < partial.size(); ++share) partial[0].sum.merge(partial[share].sum);
    }
    Accumulator& sum = partial[0].sum;
    const std::string bytes = sum.bytes();
    return nb::make_tuple(nb::bytes(bytes.data(), bytes.size()), sum.nan, sum.infinite);
}

double greatest_of(const Run& run, std::size_t begin, std::size_t count) {
    if (run.code == FLOAT64) {
        const std::uint64_t bits = clip::greatest64(at<std::uint64_t>(run, begin), count);
        double value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    if (run.code == FLOAT32) return clip::as_float(clip::greatest32(at<std::uint32_t>(run, begin), count));
    const std::uint16_t bits = clip::greatest16(at<std::uint16_t>(run, begin), count);
    return run.code == BFLOAT16 ? clip::BFloat16::load(bits) : clip::Float16::load(bits);
}

double greatest(const std::vector<Run>& runs, std::size_t total, std::size_t threads) {
    std::vector<double> found(shares_for(total, threads));
    const nb::gil_scoped_release released;
    in_shares(runs, total, found.size(), [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t share) {
        const double value = greatest_of(runs[i], begin, end - begin);
        if (!(value <= found[share])) found[share] = std::isnan(found[share]) ? found[share] : value;
    });
    double result = 0;
    for (double value : found)
        if (!(value <= result) && !std::isnan(result)) result = value;
    return result;
}

void scale(const std::vector<Run>& from, std::vector<Run>& to, std::size_t total, double coef, std::size_t threads) {
    const nb::gil_scoped_release released;
    const float narrow = [&] {
        const Ieee ieee;
        return static_cast<float>(coef);
    }();
    in_shares(from, total, shares_for(total, threads),
              [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t) {
                  const Run& x = from[i];
                  Run& out = to[i];
                  const std::size_t count = end - begin;
                  if (x.code == FLOAT64)
                      clip::scale_float64(at<double>(x, begin), at<double>(out, begin), count, coef);
                  else if (x.code == FLOAT32)
                      clip::scale_float32(at<float>(x, begin), at<float>(out, begin), count, narrow);
                  else if (x.code == BFLOAT16)
                      clip::scale_bfloat16(at<std::uint16_t>(x, begin), at<std::uint16_t>(out, begin), count, narrow);
                  else
                      clip::scale_float16(at<std::uint16_t>(x, begin), at<std::uint16_t>(out, begin), count, narrow);
              });
}

// -- a list of plain parameters, or gradients, in one go

// Whether an attribute is there and false; an error counts as well, so that somebody looks closer.
bool is_false(PyObject* object, PyObject* name) {
    PyObject* value = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
    const int found = PyObject_GetOptionalAttr(object, name, &value);
#else
    const int found = _PyObject_LookupAttr(object, name, &value);  // without the cost of an exception
#endif
    const nb::object held = nb::steal(value);
    const bool is = found < 0 || (held.is_valid() && PyObject_IsTrue(held.ptr()) != 1);
    PyErr_Clear();
    return is;
}

// Whether each element has a place of its own, and they fill the memory from the first to the last.
bool is_dense(const dlpack::Tensor& tensor) {
    std::vector<std::pair<std::int64_t, std::int64_t>> steps;
    std::int64_t expected = 1;
    bool in_order = true;
    for (std::int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
        if (tensor.shape[axis] == 0) return true;
        if (tensor.shape[axis] == 1) continue;
        if (tensor.strides && tensor.strides[axis] != expected) in_order = false;
        expected *= tensor.shape[axis];
    }
    if (in_order) return true;
    for (std::int32_t axis = 0; axis < tensor.ndim; ++axis)
        if (tensor.shape[axis] > 1) steps.emplace_back(tensor.strides[axis], tensor.shape[axis]);
    std::sort(steps.begin(), steps.end());
    expected = 1;
    for (const auto& [stride, length] : steps) {
        if (stride != expected) return false;
        expected *= length;
    }
    return true;
}

char code_of(const dlpack::Tensor& tensor) {
    const auto& dtype = tensor.dtype;
    if (dtype.lanes != 1) return 0;
    if (dtype.code == dlpack::BFLOAT) return dtype.bits == 16 ? BFLOAT16 : 0;
    if (dtype.code != dlpack::FLOAT) return 0;
    return dtype.bits == 16 ? FLOAT16 : dtype.bits == 32 ? FLOAT32 : dtype.bits == 64 ? FLOAT64 : 0;
}

// The gradients of a list of parameters, where every one is plain: see `lane`.
class Lane {
   public:
    nb::list tensors;
    bool has_float64 = false;

    // False where the tensor is not plain.
    bool add(PyObject* tensor, const dlpack::ExchangeApi& api) {
        dlpack::Tensor found;
        if (api.tensor_from_object(tensor, &found)) {
            PyErr_Clear();
            return false;
        }
        const char code = code_of(found);
        if (found.device.type != dlpack::CPU || !code || !is_dense(found)) return false;
        std::size_t count = 1;
        for (std::int32_t axis = 0; axis < found.ndim; ++axis) count *= static_cast<std::size_t>(found.shape[axis]);
        if (!count || !found.data) return false;
        tensors.append(nb::handle(tensor));
        has_float64 |= code == FLOAT64;
        runs_.push_back({static_cast<char*>(found.data) + found.byte_offset, count, code});
        total_ += count;
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

    nb::tuple power_sum(int p, bool exact, std::size_t threads) const {
        return ::power_sum(runs_, total_, p, exact, threads);
    }
    double greatest(std::size_t threads) const { return ::greatest(runs_, total_, threads); }
    void scale(double coef, std::size_t threads) { ::scale(runs_, runs_, total_, coef, threads); }

   private:
    std::vector<Run> runs_;
    std::size_t total_ = 0;
};

// The gradients of parameters of exactly one type, leaves, themselves of exactly one type, not empty, dense, real, in CPU
// memory, each in a place of its own. Null where anything is otherwise: then the caller looks closer.
std::unique_ptr<Lane> lane(nb::handle items, nb::handle parameter_type, nb::handle tensor_type, nb::capsule exchange,
                           const nb::list& checks) {
    const auto* api = static_cast<const dlpack::ExchangeApi*>(exchange.data());
    if (api->version.major != 1 || !api->tensor_from_object) return nullptr;
    static PyObject* const grad = PyUnicode_InternFromString("grad");
    static PyObject* const is_leaf = PyUnicode_InternFromString("is_leaf");
    static PyObject* const need_clip = PyUnicode_InternFromString("need_clip");
    auto found = std::make_unique<Lane>();
    for (nb::handle item : items) {
        if (item.is_none()) continue;
        if (reinterpret_cast<PyObject*>(Py_TYPE(item.ptr())) != parameter_type.ptr()) return nullptr;
        if (is_false(item.ptr(), need_clip) || is_false(item.ptr(), is_leaf)) return nullptr;
        const nb::object tensor = nb::steal(PyObject_GetAttr(item.ptr(), grad));
        if (!tensor.is_valid()) throw nb::python_error();
        if (tensor.is_none()) continue;
        if (reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) != tensor_type.ptr()) return nullptr;
        for (nb::handle check : checks) {
            const nb::object told = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), nb::object(check[0]).ptr()));
            if (!told.is_valid()) throw nb::python_error();
            if (!told.is(nb::object(check[1]))) return nullptr;
        }
        if (!found->add(tensor.ptr(), *api)) return nullptr;
    }
    return found->overlaps() ? nullptr : std::move(found);
}

}  // namespace

NB_MODULE(_kernels, module) {
    module.doc() = "Compiled kernels of the host path: see unified_clip/_ops/kernels.py, which has the same in NumPy.";
    module.def(
        "power_sum",
        [](const nb::list& objects, const std::string& codes, int p, bool exact, std::size_t threads) {
            if (!exact && codes.find(FLOAT64) != std::string::npos)
                throw nb::value_error("float64 has exact sums only");
            const Buffers buffers(objects, codes, false);
            return power_sum(buffers.runs, buffers.total, p, exact, threads);
        },
        nb::arg("buffers"), nb::arg("codes"), nb::arg("p"), nb::arg("exact"), nb::arg("threads"),
        "The sum of |x|**p (p is 1 or 2) as little-endian bytes in units of 2**-2148, and whether there is a NaN and an "
        "infinity. Unless exact: sums of at most 4096 float64 terms are rounded (no float64 buffers).");
    module.def(
        "greatest",
        [](const nb::list& objects, const std::string& codes, std::size_t threads) {
            const Buffers buffers(objects, codes, false);
            return greatest(buffers.runs, buffers.total, threads);
        },
        nb::arg("buffers"), nb::arg("codes"), nb::arg("threads"), "The greatest magnitude; NaN if there is any.");
    module.def(
        "scale",
        [](const nb::list& objects, const nb::list& results, const std::string& codes, double coef,
           std::size_t threads) {
            const Buffers from(objects, codes, false);
            Buffers to(results, codes, true);
            const auto same_length = [](const Run& a, const Run& b) { return a.count == b.count; };
            if (!std::equal(from.runs.begin(), from.runs.end(), to.runs.begin(), to.runs.end(), same_length))
                throw nb::value_error("the results have other lengths");
            scale(from.runs, to.runs, from.total, coef, threads);
        },
        nb::arg("buffers"), nb::arg("results"), nb::arg("codes"), nb::arg("coef"), nb::arg("threads"),
        "Write every number times coef into the results, which may be the buffers.");
    nb::class_<Lane>(module, "Lane")
        .def_ro("tensors", &Lane::tensors)
        .def_ro("has_float64", &Lane::has_float64)
        .def("power_sum", &Lane::power_sum, nb::arg("p"), nb::arg("exact"), nb::arg("threads"))
        .def("greatest", &Lane::greatest, nb::arg("threads"))
        .def("scale", &Lane::scale, nb::arg("coef"), nb::arg("threads"), "In place.");
    module.def("lane", &lane, nb::arg("items"), nb::arg("parameter_type"), nb::arg("tensor_type"), nb::arg("exchange"),
               nb::arg("checks"),
               "The gradients of a list of parameters, if all are plain; else None. `checks`: methods of tensors, and "
               "what they return for plain ones, to be asked before a tensor is looked at.");
}
