// Functions of a library of another program. They are found by their names, so no header of the library is needed.
#pragma once

#if defined(__linux__)
#include <dlfcn.h>
#endif

#include <initializer_list>
#include <tuple>
#include <vector>

namespace clip {

// A subclass has a `Function` for each function of the library that it calls.
class Library {
   public:
    Library() = default;
    Library(const Library&) = delete;

    // Find all functions. Return false if one that is needed is missing. `is_loaded`: look only in libraries of this
    // process.
    bool load(std::initializer_list<const char*> files, bool is_loaded = true) {
        for (auto& [name, address, is_needed] : functions_)
            if (!(*address = find(files, name, is_loaded)) && is_needed) return false;
        return true;
    }

   private:
    template <class Signature>
    friend class Function;

    static void* find(std::initializer_list<const char*> files, const char* name, bool is_loaded) {
#if defined(__linux__)
        for (const char* file : files)
            if (void* const library = dlopen(file, RTLD_NOW | (is_loaded ? RTLD_NOLOAD : 0)))
                if (void* const address = dlsym(library, name)) return address;
#else
        (void)files, (void)name, (void)is_loaded;
#endif
        return nullptr;
    }

    std::vector<std::tuple<const char*, void**, bool>> functions_;
};

template <class Signature>
class Function {
   public:
    Function(Library* library, const char* name, bool is_needed = true) {
        library->functions_.emplace_back(name, &address_, is_needed);
    }
    Function(const Function&) = delete;

    operator Signature*() const { return reinterpret_cast<Signature*>(address_); }

   private:
    void* address_ = nullptr;
};

}  // namespace clip
