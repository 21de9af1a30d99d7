// The gradients of one call in the memory of one GPU.
#pragma once

#include "tensor_list.hpp"

namespace clip {

// Dense real tensors on one device. No tensor is empty. Only their addresses are read here, and kernels of the GPU read
// and write the numbers.
class DeviceList {
   public:
    nb::list tensors;
    bool has_float64 = false;

    // `on_cpu`: the tensors are in CPU memory, for tests.
    DeviceList(const dlpack::ExchangeApi& api, bool on_cpu) : api_(api), on_cpu_(on_cpu) {}

    // Return false if the list does not support the tensor.
    bool add(PyObject* tensor, bool) {
        dlpack::Tensor found;
        Span span;
        if (!describe_dense(api_, tensor, found, span)) return false;
        const auto [type, id] = found.device;
        if (on_cpu_ ? type != dlpack::CPU : type != dlpack::CUDA && type != dlpack::ROCM) return false;
        if (!spans_.empty() && id != device_) return false;
        device_ = id;
        tensors.append(nb::handle(tensor));
        codes += span.kernels->code;
        has_float64 |= span.kernels->code == 'd';
        spans_.push_back(std::move(span));
        return true;
    }

    bool overlaps() const { return overlap(spans_); }

    // Return the address and the number of elements of each tensor, as 8-byte integers.
    nb::bytes memory() const {
        std::vector<std::int64_t> numbers;
        numbers.reserve(2 * spans_.size());
        for (const Span& span : spans_) {
            numbers.push_back(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(span.data)));
            numbers.push_back(static_cast<std::int64_t>(span.count));
        }
        return nb::bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int64_t));
    }

    std::string codes;  // as in `CODES` of unified_clip/_compute/kernels.py

   private:
    const dlpack::ExchangeApi& api_;
    bool on_cpu_;
    std::int32_t device_ = 0;  // the number of the GPU
    Spans spans_;
};

}  // namespace clip
