// What Python calls: kernels over whole lists of buffers, shared among threads by their total length.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cfenv>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

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
        held_.reserve(length);
        runs.reserve(length);
        for (std::size_t i = 0; i < length; ++i) add(objects[i].ptr(), codes[i], writable);
    }

    ~Buffers() {
        for (Py_buffer& view : held_) PyBuffer_Release(&view);
    }

    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    std::vector<Run> runs;
    std::size_t total = 0;

   private:
    void add(PyObject* object, char code, bool writable) {
        Py_buffer view;
        if (PyObject_GetBuffer(object, &view, PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0))) {
            release();
            throw nb::python_error();
        }
        held_.push_back(view);
        if (static_cast<std::size_t>(view.itemsize) != size_of(code)) {
            release();
            throw nb::value_error("a buffer's items do not have the size that its code says");
        }
        const std::size_t count = static_cast<std::size_t>(view.len) / size_of(code);
        if (count) runs.push_back({static_cast<char*>(view.buf), count, code});
        total += count;
    }

    // A constructor that throws runs no destructor.
    void release() {
        for (Py_buffer& view : held_) PyBuffer_Release(&view);
        held_.clear();
    }

    std::vector<Py_buffer> held_;
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
    std::size_t inline_from = 1;
    try {
        for (; inline_from < shares; ++inline_from) threads.emplace_back(share_work, inline_from);
    } catch (const std::system_error&) {  // no more threads to be had: this one does the rest
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

nb::tuple power_sum(const nb::list& objects, const std::string& codes, int p, bool exact, std::size_t threads) {
    const Buffers buffers(objects, codes, false);
    const bool squared = p == 2;
    std::vector<Partial> partial(shares_for(buffers.total, threads));
    {
        const nb::gil_scoped_release released;
        in_shares(buffers.runs, buffers.total, partial.size(),
                  [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t share) {
                      const Run& run = buffers.runs[i];
                      if (exact) return exact_sum(partial[share].sum, run, begin, end - begin, squared);
                      for (std::size_t start = begin; start < end; start += BLOCK) {
                          const std::size_t count = std::min(BLOCK, end - start);
                          partial[share].add(block_sum(run, start, count, squared), count);
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

double greatest(const nb::list& objects, const std::string& codes, std::size_t threads) {
    const Buffers buffers(objects, codes, false);
    std::vector<double> found(shares_for(buffers.total, threads));
    const nb::gil_scoped_release released;
    in_shares(buffers.runs, buffers.total, found.size(),
              [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t share) {
                  const double value = greatest_of(buffers.runs[i], begin, end - begin);
                  if (!(value <= found[share])) found[share] = std::isnan(found[share]) ? found[share] : value;
              });
    double result = 0;
    for (double value : found)
        if (!(value <= result) && !std::isnan(result)) result = value;
    return result;
}

void scale(const nb::list& objects, const nb::list& results, const std::string& codes, double coef,
           std::size_t threads) {
    const Buffers from(objects, codes, false);
    Buffers to(results, codes, true);
    if (from.runs.size() != to.runs.size()) throw nb::value_error("the results have other lengths");
    for (std::size_t i = 0; i < to.runs.size(); ++i)
        if (from.runs[i].count != to.runs[i].count) throw nb::value_error("the results have other lengths");
    const nb::gil_scoped_release released;
    const float narrow = [&] {
        const Ieee ieee;
        return static_cast<float>(coef);
    }();
    in_shares(from.runs, from.total, shares_for(from.total, threads),
              [&](std::size_t i, std::size_t begin, std::size_t end, std::size_t) {
                  const Run& x = from.runs[i];
                  Run& out = to.runs[i];
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

}  // namespace

NB_MODULE(_kernels, module) {
    module.doc() = "Compiled kernels of the host path: see unified_clip/_ops/kernels.py, which has the same in NumPy.";
    module.def("power_sum", &power_sum, nb::arg("buffers"), nb::arg("codes"), nb::arg("p"), nb::arg("exact"),
               nb::arg("threads"),
               "The sum of |x|**p (p is 1 or 2) as little-endian bytes in units of 2**-2148, and whether there is a NaN "
               "and an infinity. Unless exact: sums of at most 4096 float64 terms are rounded (no float64 buffers).");
    module.def("greatest", &greatest, nb::arg("buffers"), nb::arg("codes"), nb::arg("threads"),
               "The greatest magnitude; NaN if there is any.");
    module.def("scale", &scale, nb::arg("buffers"), nb::arg("results"), nb::arg("codes"), nb::arg("coef"),
               nb::arg("threads"), "Write every number times coef into the results, which may be the buffers.");
}
