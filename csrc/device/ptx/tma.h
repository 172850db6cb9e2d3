// Copies from global to shared memory by the copy engine of a multiprocessor (TMA, sm_90), which count their bytes on an
// mbarrier, and the fence between them and accesses by threads.
// PTX ISA, "cp.async.bulk", "cp.async.bulk.tensor" and "Memory Consistency Model: Proxies":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/ptx/barrier.h"
#include "device/ptx/memory.h"

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What the caller read and wrote in this block's shared memory comes before copies that it lets begin later, by a barrier
// or itself. Fencing by the readers, before they give a buffer back, is what compute-sanitizer's racecheck asks for; a
// fence by the thread alone that waited for them and copies does not content it.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

// Boxes of a tensor: a map, made on the host (host/tensor_map.h) and passed as a `const __grid_constant__ CUtensorMap`
// parameter, knows the tensor and the box: what of a box lies outside the tensor arrives as zeros, and counts as bytes all
// the same.

// Fetches the map itself ahead of the first copy by it.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box whose first value is at `corner`, outermost dimension first, to this block's shared memory, counted on `barrier`.
// Swizzled boxes begin at a multiple of eight lines of the swizzle: 1024 bytes for lines of 128.
template <int rank>
__device__ __forceinline__ void tensor_load(void* shared, const CUtensorMap* map, const int (&corner)[rank],
                                            uint64_t* barrier) {
  static_assert(rank >= 1 && rank <= 5, "maps have 1 to 5 dimensions");
  if constexpr (rank == 1) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(
            shared_address(shared)),
        "l"(map), "r"(corner[0]), "r"(shared_address(barrier))
        : "memory");
  } else if constexpr (rank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(shared)),
        "l"(map), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier))
        : "memory");
  } else if constexpr (rank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(shared_address(shared)),
        "l"(map), "r"(corner[2]), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier))
        : "memory");
  } else if constexpr (rank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(shared_address(shared)),
        "l"(map), "r"(corner[3]), "r"(corner[2]), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
        "[%7];" ::"r"(shared_address(shared)),
        "l"(map), "r"(corner[4]), "r"(corner[3]), "r"(corner[2]), "r"(corner[1]), "r"(corner[0]),
        "r"(shared_address(barrier))
        : "memory");
  }
}

// The same to every block of the cluster whose bit of `blocks` is set: to the same place of its shared memory, counted
// on its own barrier of the same name.
template <int rank>
__device__ __forceinline__ void tensor_load_multicast(void* shared, const CUtensorMap* map, const int (&corner)[rank],
                                                      uint64_t* barrier, uint16_t blocks) {
  static_assert(rank >= 1 && rank <= 5, "maps have 1 to 5 dimensions");
  if constexpr (rank == 1) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
        "{%2}], [%3], %4;" ::"r"(shared_address(shared)),
        "l"(map), "r"(corner[0]), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
  } else if constexpr (rank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
        "{%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
        "l"(map), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
  } else if constexpr (rank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
        "{%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
        "l"(map), "r"(corner[2]), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
  } else if constexpr (rank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
        "{%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(shared)),
        "l"(map), "r"(corner[3]), "r"(corner[2]), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier)),
        "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
        "{%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(shared)),
        "l"(map), "r"(corner[4]), "r"(corner[3]), "r"(corner[2]), "r"(corner[1]), "r"(corner[0]),
        "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
  }
}

#endif

}  // namespace warpsmith::ptx
