// CUDA's driver for a GPU that is emulated on the CPU: a "cubin" is a shared library with a kernel (emulation.hpp).
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int INVALID_VALUE = 1, NOT_READY = 600, RELAXED = 2;

int setting(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

int contexts[2];  // of two GPUs; their addresses stand for them
void* current;
int capture_mode;

}  // namespace

extern "C" {

int emulated_launches;  // tests read and reset it
int emulated_error;     // what the next launch returns
int emulated_capture;   // while it is not 0, code may be loaded in the relaxed mode only

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = setting("EMULATED_DRIVER", 13000), 0; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_EMULATED", 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal < 0 || ordinal > 1 ? INVALID_VALUE : 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    const int capability = setting("EMULATED_CAPABILITY", 90);
    *value = attribute == 16 ? 2 : attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : -1;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &contexts[device], 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxPushCurrent_v2(void* context) { return current = context, 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = current, current = nullptr, 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) {
    const int before = capture_mode;
    capture_mode = *mode, *mode = before;
    return 0;
}

int cuModuleLoadData(void** module, const void* image) {
    if (emulated_capture && capture_mode != RELAXED) return NOT_READY;
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    const std::size_t size = header.e_shoff + std::size_t(header.e_shnum) * header.e_shentsize;
    const int file = memfd_create("cubin", 0);
    if (file < 0 || write(file, image, size) != static_cast<ssize_t>(size)) return INVALID_VALUE;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    *module = dlopen(path, RTLD_NOW);
    if (!*module) std::fprintf(stderr, "%s\n", dlerror());
    return *module ? 0 : INVALID_VALUE;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = std::strcmp(name, "kernel") ? nullptr : dlsym(module, "run");
    return *function ? 0 : INVALID_VALUE;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) { return *blocks = 2, 0; }

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned,
                   void*, void** parameters, void**) {
    if (!current) return INVALID_VALUE;
    if (emulated_error) return emulated_error;
    ++emulated_launches;
    return reinterpret_cast<int (*)(void**, unsigned, unsigned)>(function)(parameters, blocks, threads);
}
}
