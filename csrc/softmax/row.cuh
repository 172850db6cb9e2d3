// Device side of the softmax family: exponentials, reductions over a block, and a row's maximum and sum taken together.
#pragma once

#include <cfloat>
#include <type_traits>

#include "device/convert.h"
#include "device/ptx/math.h"
#include "device/vec.h"
#include "device/warp.h"

namespace warpsmith {

inline constexpr float kLog2e = 1.4426950408889634f;

// Where a maximum starts. Finite, so that subtracting it from -inf gives -inf and never NaN: a share of a row that is
// all -inf contributes 0, and a whole row of them ends in 0 / 0.
inline constexpr float kLowest = -FLT_MAX;

// e^x. For f32 data expf; for 16-bit data two instructions, whose error is far below the rounding of the result, and
// whose flush of what lies below the normal numbers is far below what a sum of at least 1 can show.
template <class T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return ptx::exp2_approx_ftz(x * kLog2e);
  }
}

// 1/x, rounded to nearest.
__device__ __forceinline__ float reciprocal(float x) { return __frcp_rn(x); }

// --- reductions ------------------------------------------------------------------------------------------------------

// NaN loses: it reaches the result through the sum.
struct Largest {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over a block of any number of warps; every thread gets the result. Two calls in a row need two buffers, and the same
// buffer twice needs a barrier in between.
template <class Reduce>
__device__ __forceinline__ float block_reduce(float value, float (&partial)[kWarp], Reduce reduce, float identity) {
  value = warp_reduce(value, reduce);
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) return value;
  if (lane == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? partial[lane] : identity, reduce);
}

__device__ __forceinline__ float block_max(float value, float (&partial)[kWarp]) {
  return block_reduce(value, partial, Largest{}, kLowest);
}

__device__ __forceinline__ float block_sum(float value, float (&partial)[kWarp]) {
  return block_reduce(value, partial, Sum{}, 0.0f);
}

// --- maximum and sum in one sweep -------------------------------------------------------------------------------------

// Of the values seen so far: the largest, and the sum of exp(x - max).
struct MaxSum {
  float max, sum;

  static __device__ __forceinline__ MaxSum empty() { return {kLowest, 0.0f}; }
};

// n more values at the price of one correction of the sum; -inf stands for no value.
template <class T, int n>
__device__ __forceinline__ MaxSum include(const MaxSum& seen, const float (&values)[n]) {
  float max = seen.max;
#pragma unroll
  for (int i = 0; i < n; ++i) max = fmaxf(max, values[i]);
  float sum = seen.sum * exponential<T>(seen.max - max);
#pragma unroll
  for (int i = 0; i < n; ++i) sum += exponential<T>(values[i] - max);
  return {max, sum};
}

template <class T>
__device__ __forceinline__ MaxSum warp_merge(const MaxSum& own) {
  const float max = warp_reduce(own.max, Largest{});
  return {max, warp_reduce(own.sum * exponential<T>(own.max - max))};
}

// As block_reduce.
template <class T>
__device__ __forceinline__ MaxSum block_merge(const MaxSum& own, MaxSum (&partial)[kWarp]) {
  const MaxSum whole = warp_merge<T>(own);
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) return whole;
  if (lane == 0) partial[threadIdx.x / kWarp] = whole;
  __syncthreads();
  return warp_merge<T>(lane < warps ? partial[lane] : MaxSum::empty());
}

}  // namespace warpsmith
