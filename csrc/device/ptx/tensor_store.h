// Copies from shared to global memory by the copy engine (sm_90), and loads that say how long L2 keeps what they bring.
// PTX ISA, "cp.async.bulk.tensor" and "cp.reduce.async.bulk.tensor":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
//
// Stores belong to the thread that starts them, as do the groups that it closes:
//
//   every thread that wrote to shared memory   fence_proxy_async(), then a barrier
//   one thread                                 tensor_store(&map, {row, col}, shared), stores_commit()
//   the same thread, before others write there again     stores_wait_read<0>(), then a barrier
//   the same thread, before the results are needed within the kernel   stores_wait<0>()
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/ptx/memory.h"

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A box from shared memory, its first value to `corner`, outermost dimension first; what of it lies past the end of the
// tensor is left out, of lines in whole 16 bytes: where a line ends within some, all 16 are written (seen on an H200). No
// coordinate of the corner is negative, other than of loads, and the last is a multiple of 16 bytes: elsewhere the store is
// an illegal instruction (CUDA C++ Programming Guide, "Negative indices and out of bounds").
// Swizzled boxes begin at a multiple of eight lines of the swizzle.
template <int rank>
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const int (&corner)[rank], const void* shared) {
  static_assert(rank == 2 || rank == 3, "matrices and batches of them");
  if constexpr (rank == 2) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
                 "r"(corner[1]), "r"(corner[0]), "r"(shared_address(shared))
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(corner[2]), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(shared))
                 : "memory");
  }
}

// The same, added to what is there: f32, f16 and bf16, each addition indivisible, in no order.
template <int rank>
__device__ __forceinline__ void tensor_add(const CUtensorMap* map, const int (&corner)[rank], const void* shared) {
  static_assert(rank == 2 || rank == 3, "matrices and batches of them");
  if constexpr (rank == 2) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(corner[1]), "r"(corner[0]), "r"(shared_address(shared))
        : "memory");
  } else {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
        "r"(corner[2]), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(shared))
        : "memory");
  }
}

__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but `pending` groups of this thread have been read from shared memory.
template <int pending>
__device__ __forceinline__ void stores_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Until they have been written.
template <int pending>
__device__ __forceinline__ void stores_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

// tensor_load and tensor_load_multicast (device/ptx/tma.h) of a matrix, with an L2 policy made by policy_evict_….
__device__ __forceinline__ void tensor_load(void* shared, const CUtensorMap* map, const int (&corner)[2],
                                            uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tensor_load_multicast(void* shared, const CUtensorMap* map, const int (&corner)[2],
                                                      uint64_t* barrier, uint16_t blocks, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(corner[1]), "r"(corner[0]), "r"(shared_address(barrier)), "h"(blocks), "l"(policy)
      : "memory");
}

#endif

}  // namespace warpsmith::ptx
