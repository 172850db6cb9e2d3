// The tree of the climb with the size of the block known to the compiler: nothing of the loop is left at run time.
#pragma once

#include "device/warp.h"
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {

// The sum over the block, for thread 0.
__device__ __forceinline__ float tree_sum(float value, float (&partial)[kClimbThreads]) {
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
      const float other = partial[tid + half];
      __syncwarp();
      partial[tid] += other;
      __syncwarp();
    }
  }
  return tid == 0 ? partial[0] : 0.0f;
}

}  // namespace warpsmith
