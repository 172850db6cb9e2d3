// Copies of boxes of a matrix from global to shared memory, made by the copy engine of a multiprocessor (sm_90). A map,
// made on the host (host/tensor_map.h) and passed as a `const __grid_constant__ CUtensorMap` parameter, knows the matrix
// and the box: what of a box lies outside the matrix arrives as zeros, and counts as bytes all the same.
// PTX ISA, "cp.async.bulk.tensor":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/ptx/mbarrier.h"

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Fetches the map itself ahead of the first copy by it.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box whose first value is [row, col] to this block's shared memory, counted on `barrier`. Swizzled boxes begin at a
// multiple of eight lines of the swizzle: 1024 bytes for lines of 128.
__device__ __forceinline__ void tensor_load(void* shared, const CUtensorMap* map, int row, int col, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(shared)),
      "l"(map), "r"(col), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// The same to every block of the cluster whose bit of `blocks` is set: to the same place of its shared memory, counted
// on its own barrier of the same name.
__device__ __forceinline__ void tensor_load_multicast(void* shared, const CUtensorMap* map, int row, int col,
                                                      uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(col), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}

#endif

}  // namespace warpsmith::ptx
