// Ends a kernel, and with it everything on its context, with words: for arguments that lie in device memory, which no
// check on the host can see.
// CUDA C++ Programming Guide, "Assertion": https://docs.nvidia.com/cuda/cuda-c-programming-guide/#assertion
#pragma once

#include <cassert>

namespace warpsmith::ptx {

// The message goes to standard error, and calls of CUDA fail with cudaErrorAssert from then on. Unlike printf it takes no
// stack, so a kernel pays for it with a branch. It names no file and no line, which would be part of the machine code.
__device__ __forceinline__ void trap_with([[maybe_unused]] const char* message) {
#ifdef __CUDA_ARCH__
  __assert_fail(message, "warpsmith", 0, "a kernel");
#endif
}

}  // namespace warpsmith::ptx
