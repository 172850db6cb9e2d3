// The tree of the climb with the size of the block known to the compiler: nothing of the loop is left at run time.
#pragma once

#include "device/warp.h"
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {

// The sum over the block, for thread 0.
template <class T>
__device__ __forceinline__ T tree_sum(T value, T (&partial)[kClimbThreads]) {
  const int tid = threadIdx.x;
  partial[tid] = value;
  __syncthreads();
#pragma unroll
  for (int half = kClimbThreads / 2; half > kWarp; half /= 2) {
    if (tid < half) partial[tid] += partial[tid + half];
    __syncthreads();
  }
  if (tid < kWarp) {
#pragma unroll
    for (int half = kWarp; half > 0; half /= 2) {
      const T other = partial[tid + half];
      __syncwarp();
      partial[tid] += other;
      __syncwarp();
    }
  }
  return tid == 0 ? partial[0] : T{};
}

}  // namespace warpsmith
