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

    // Return the numbers of each tensor at the addresses `data`.
    Spans spans(const void* const* data) {
        Spans spans;
        while (*rest_ == ' ') {
            const char code = *++rest_;
            ++rest_;
            spans.push_back(span_of(code, data[spans.size()], static_cast<std::size_t>(number())));
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

using Text = const std::string&;

#define CLIP_STRING "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

// XLA's registry. The first argument of its member functions is the registry.
struct Registry : Library {
    Function<void*()> global{this, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"};
    Function<void*(void*, Text, Text)> look_up{this, "_ZNK3xla24CustomCallTargetRegistry6LookupE" CLIP_STRING "S8_"};
    Function<void(void*, Text, void*, Text)> add{
        this, "_ZN3xla24CustomCallTargetRegistry8RegisterE" CLIP_STRING "PvS8_"};
    Function<std::optional<std::string_view>(const CallStatus*)> message{
        this, "_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_"};
};

#undef CLIP_STRING

inline Registry registry;

// Register the norm with XLA, and as the CPU kernel of XlaCustomCallV2, once per process. Return false if this
// TensorFlow lacks a function, or if another copy of unified_clip has registered its norm.
inline bool register_custom_call() {
    static const bool registered = [] {
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI  // the mangled names contain this std::string
        if (!registry.load(LIBRARIES) || !api.load(LIBRARIES)) return false;
        const CallStatus none, error = "XLA has to read an error where the norm writes it";
        const auto read = registry.message(&error);
        if (registry.message(&none) || !read) return false;
        if (read->data() != error->data() || read->size() != error->size()) return false;
        const auto norm = reinterpret_cast<void*>(&call_norm);
        void* const targets = registry.global();
        if (registry.look_up(targets, TARGET, PLATFORM)) return false;  // a second registration would end the process
        registry.add(targets, TARGET, norm, PLATFORM);
        return registry.look_up(targets, TARGET, PLATFORM) == norm &&
               register_kernel(CUSTOM_CALL, create_call, compute<compute_norm>);
#else
        return false;
#endif
    }();
    return registered;
}

}  // namespace clip::tensorflow
