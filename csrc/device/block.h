// Reductions over a thread block: warps first, then one value per warp through shared memory.
#pragma once

#include "device/add.h"
#include "device/convert.h"
#include "device/warp.h"

namespace warpsmith {

// Shared memory of one block reduction. Two reductions in a row need two, or a __syncthreads() between them.
template <class T, int threads>
struct BlockReduceStorage {
  T partial[threads / kWarp];  // [warps]
};

// Every thread gets the result. `threads` is the block's size, a multiple of 32; every thread must call.
template <int threads, class T, class Reduce = Sum>
__device__ __forceinline__ T block_reduce(T value, BlockReduceStorage<T, threads>& shared, Reduce reduce = {}) {
  static_assert(threads % kWarp == 0 && threads <= 1024, "whole warps only");
  constexpr int kWarps = threads / kWarp;
  value = warp_reduce(value, reduce);
  if constexpr (kWarps > 1) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (lane == 0) shared.partial[warp] = value;
    __syncthreads();
    value = shared.partial[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) value = reduce(value, shared.partial[i]);
  }
  return value;
}

// Sum over the block, by shuffles and one value per warp; every thread gets it. Two calls in a row need a barrier
// between them, or two buffers.
template <class A>
__device__ __forceinline__ A block_sum(A value, A (&partial)[kWarp]) {
  value = warp_reduce(value, Add{});
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) return value;
  if (lane == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? partial[lane] : from_float<A>(0.0f), Add{});
}

}  // namespace warpsmith
