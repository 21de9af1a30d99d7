// One kernel, compiled by g++ with the options that NVRTC gets, for `driver.cpp`.
#include "emulation.hpp"

#include "clip.cu"

extern "C" int run(void** parameters, unsigned blocks, unsigned threads) {
    if (threads != THREADS) return 1;
    emulation::launch(kernel, parameters, blocks, threads);
    return 0;
}
