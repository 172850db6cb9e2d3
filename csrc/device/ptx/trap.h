// Ends a kernel, and with it everything on its context, with words: for arguments that lie in device memory, which no
// check on the host can see.
// CUDA C++ Programming Guide, "Assertion": https://docs.nvidia.com/cuda/cuda-c-programming-guide/#assertion
#pragma once

#include <cassert>

namespace warpsmith::ptx {

// The message goes to standard error, and calls of CUDA fail with cudaErrorAssert from then on. Unlike printf it takes no
// stack, so a kernel pays for it with a branch.
__device__ __forceinline__ void trap_with([[maybe_unused]] const char* message, [[maybe_unused]] const char* file,
                                          [[maybe_unused]] unsigned line) {
#ifdef __CUDA_ARCH__
  __assert_fail(message, file, line, "a kernel of warpsmith");
#endif
}

}  // namespace warpsmith::ptx
