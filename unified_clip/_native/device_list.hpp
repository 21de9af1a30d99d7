// The gradients of one call in the memory of one GPU.
#pragma once

#include "tensor_list.hpp"

namespace clip {

// Dense real numbers on one device. No tensor is empty. Only addresses are read here: kernels of the GPU read and write
// the numbers.
class DeviceList {
   public:
    nb::list tensors;
    bool has_float64 = false;

    // `on_cpu`: the tensors are in CPU memory, for tests.
    DeviceList(const dlpack::ExchangeApi& api, bool on_cpu) : api_(&api), on_cpu_(on_cpu) {}

    // Tensors that Python has checked. A complex number counts as two real numbers.
    DeviceList(int device, const std::vector<std::uintptr_t>& addresses, const std::vector<std::size_t>& counts,
               const std::string& codes)
        : on_cpu_(false), device_(device) {
        for (std::size_t i = 0; i < codes.size(); ++i)
            append({reinterpret_cast<char*>(addresses.at(i)), counts.at(i), kernels_of(codes[i])});
    }

    // Return false if the list does not support the tensor.
    bool add(PyObject* tensor, bool) {
        dlpack::Tensor found;
        Span span;
        if (!describe_dense(*api_, tensor, found, span)) return false;
        const auto [type, id] = found.device;
        if (type != (on_cpu_ ? dlpack::CPU : dlpack::CUDA)) return false;
        if (!spans_.empty() && id != device_) return false;
        if (reinterpret_cast<std::uintptr_t>(span.data) % span.kernels->size) return false;
        device_ = id;
        tensors.append(nb::handle(tensor));
        append(std::move(span));
        return true;
    }

    bool overlaps() const { return overlap(spans_); }
    const Spans& spans() const { return spans_; }
    int device() const { return device_; }

    // Return whether all numbers have 16 bits.
    bool is_narrow() const {
        return std::all_of(spans_.begin(), spans_.end(), [](const Span& span) { return span.kernels->size == 2; });
    }

   private:
    void append(Span span) {
        has_float64 |= span.kernels->code == 'd';
        spans_.push_back(std::move(span));
    }

    const dlpack::ExchangeApi* api_ = nullptr;
    bool on_cpu_;
    std::int32_t device_ = 0;  // the number of the GPU
    Spans spans_;
};

}  // namespace clip
