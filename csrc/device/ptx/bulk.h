// Bulk copies from global to shared memory, made by the copy engine of a multiprocessor (sm_90).
// PTX ISA, "cp.async.bulk":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
#pragma once

#include <cstdint>

#include "device/ptx/mbarrier.h"

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// `bytes` (a multiple of 16, both sides aligned to 16) to this block's shared memory, counted on `barrier`, with an L2
// policy made by policy_evict_….
__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

#endif

}  // namespace warpsmith::ptx
