// Order between accesses by threads and copies in bulk (sm_90), which reach shared memory by another way.
// PTX ISA, "Memory Consistency Model: Proxies" and "membar / fence":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
#pragma once

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What the caller read and wrote in this block's shared memory comes before copies that it lets begin later, by a barrier
// or itself. Fencing by the readers, before they give a buffer back, is what compute-sanitizer's racecheck asks for; a
// fence by the thread alone that waited for them and copies does not content it.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

}  // namespace warpsmith::ptx
