// Norms in programs that TensorFlow's XLA compiles for a CPU. The operation XlaCustomCallV2 calls a function by its
// name in XLA's registry. The registry is a C++ class that TensorFlow exports, but does not document. Its functions are
// found by their mangled names, which contain the types of their arguments.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tensorflow.hpp"

namespace clip::tensorflow {

constexpr char CUSTOM_CALL[] = "XlaCustomCallV2", TARGET[] = "unified_clip_norm", PLATFORM[] = "Host";

// The error of a custom call, as XLA stores it.
using CallStatus = std::optional<std::string>;

// The settings of a custom call: "p per_tensor batches threads", then the dtype code and the number of elements of each
// tensor. `batches` is -1 for tensors without a batch axis.
class CallConfig {
   public:
    Attributes attributes;
    std::size_t batches = 1;

    explicit CallConfig(const std::string& text) : rest_(text.c_str()) {
        attributes.p = number();
        attributes.per_tensor = number();
        const std::int64_t length = number();
        attributes.is_batch = length >= 0;
        if (attributes.is_batch) batches = static_cast<std::size_t>(length);
        attributes.threads = number();
    }

    // Return the numbers of each tensor at the addresses `data`. A complex number is two real numbers.
    Spans spans(const void* const* data) {
        Spans spans;
        while (*rest_ == ' ') {
            const char code = *++rest_;
            const bool is_complex = code == 'F' || code == 'D';
            ++rest_;
            const auto count = static_cast<std::size_t>(number()) * (is_complex ? 2 : 1);
            const Kernels* kernels = find_kernels(code == 'F' ? 'f' : code == 'D' ? 'd' : code);
            if (!kernels) throw std::invalid_argument("unified_clip's norm got a tensor of another dtype");
            spans.push_back({static_cast<char*>(const_cast<void*>(data[spans.size()])), count, kernels});
        }
        return spans;
    }

   private:
    const char* rest_;

    std::int64_t number() {
        char* end = nullptr;
        const std::int64_t number = std::strtoll(rest_, &end, 10);
        if (end == rest_) throw std::invalid_argument("unified_clip's norm got an incomplete backend_config");
        rest_ = end;
        return number;
    }
};

// The function that XLA calls in a compiled program. `norms`: the float64 result.
inline void call_norm(void* norms, const void** data, const char* config, std::size_t length,
                      CallStatus* status) noexcept {
    try {
        const std::string text(config, length);
        CallConfig call(text);
        write_norms(call.spans(data), call.batches, static_cast<int>(call.attributes.p), call.attributes.per_tensor,
                    static_cast<std::size_t>(call.attributes.threads), static_cast<double*>(norms));
    } catch (const std::bad_alloc&) {
        *status = "no memory";  // short, because a longer text would need memory
    } catch (const std::exception& error) {
        *status = error.what();
    }
}

// -- the same operation without XLA, for a `tf.function` that was traced for XLA and is called without it

inline std::string text_attribute(Construction* construction, const char* name) {
    const OwnStatus status;
    std::int32_t count = 0, length = 0;
    api.OpKernelConstruction_GetAttrSize(construction, name, &count, &length, status);
    status.check();
    std::string text(static_cast<std::size_t>(length), '\0');
    api.OpKernelConstruction_GetAttrString(construction, name, text.data(), text.size(), status);
    status.check();
    return text;
}

inline void* create_call(Construction* construction) {
    try {
        if (text_attribute(construction, "call_target_name") != TARGET)
            throw std::invalid_argument("XlaCustomCallV2 needs a function with jit_compile=True");
        return new Attributes(CallConfig(text_attribute(construction, "backend_config")).attributes);
    } catch (const std::exception& error) {
        const OwnStatus status;
        api.SetStatus(status, INTERNAL, error.what());
        api.OpKernelConstruction_Failure(construction, status);
        return nullptr;
    }
}

// -- registration

// Register the norm with XLA, and as the CPU kernel of XlaCustomCallV2, once per process. Return false if this
// TensorFlow lacks a function, or if another copy of unified_clip has registered its norm.
inline bool register_custom_call() {
    static const bool registered = [] {
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI  // the mangled names contain this std::string
        using Text = const std::string&;
        const auto global = reinterpret_cast<void* (*)()>(find("_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
        const auto look_up = reinterpret_cast<void* (*)(void*, Text, Text)>(
            find("_ZNK3xla24CustomCallTargetRegistry6LookupERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES8_"));
        const auto add = reinterpret_cast<void (*)(void*, Text, void*, Text)>(find(
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_"));
        const auto message = reinterpret_cast<std::optional<std::string_view> (*)(const CallStatus*)>(
            find("_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_"));
        if (!global || !look_up || !add || !message || !api.load()) return false;
        const CallStatus none, error = "XLA has to read an error where the norm writes it";
        const auto read = message(&error);
        if (message(&none) || !read || read->data() != error->data() || read->size() != error->size()) return false;
        const auto norm = reinterpret_cast<void*>(&call_norm);
        if (look_up(global(), TARGET, PLATFORM)) return false;  // a second registration would end the process
        add(global(), TARGET, norm, PLATFORM);
        return look_up(global(), TARGET, PLATFORM) == norm &&
               register_kernel(CUSTOM_CALL, create_call, compute<compute_norm>);
#else
        return false;
#endif
    }();
    return registered;
}

}  // namespace clip::tensorflow
