// Order between accesses by threads and copies in bulk (sm_90), which reach shared memory by another way.
// PTX ISA, "Memory Consistency Model: Proxies" and "membar / fence":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
#pragma once

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What threads wrote to this block's shared memory, as far as the caller has seen it, comes before its later copies.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

}  // namespace warpsmith::ptx
