// Mean and variance of values that come in pieces: two passes within a piece, pieces merged around the difference of
// their means, so that nothing cancels.
// Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance: Analysis and Recommendations".
#pragma once

#include "device/ptx/math.h"
#include "device/warp.h"

namespace warpsmith {

struct Moments {
  float count;
  float mean;
  float m2;  // sum of (value - mean)^2
};

__device__ __forceinline__ Moments merge(const Moments& a, const Moments& b) {
  const float count = a.count + b.count;
  const float share = count > 0.0f ? b.count * ptx::reciprocal_approx(count) : 0.0f;
  const float delta = b.mean - a.mean;
  return {count, fmaf(delta, share, a.mean), fmaf(delta * (a.count * share), delta, a.m2 + b.m2)};
}

// The moments of n values.
template <int n>
__device__ __forceinline__ Moments moments_of(const float (&values)[n]) {
  float mean = 0.0f, m2 = 0.0f;
#pragma unroll
  for (int i = 0; i < n; ++i) mean = fmaf(values[i], 1.0f / n, mean);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float deviation = values[i] - mean;
    m2 = fmaf(deviation, deviation, m2);
  }
  return {n, mean, m2};
}

// One more value, of which `count` have come with it, and `share` = 1 / count.
__device__ __forceinline__ void add_value(float& mean, float& m2, float value, float share) {
  const float delta = value - mean;
  mean = fmaf(delta, share, mean);
  m2 = fmaf(delta, value - mean, m2);
}

// Over groups of `lanes` neighbours (a power of two); every lane gets the same bits.
template <int lanes = kWarp>
__device__ __forceinline__ Moments warp_merge(Moments moments) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const Moments other{__shfl_down_sync(kAllLanes, moments.count, distance, lanes),
                        __shfl_down_sync(kAllLanes, moments.mean, distance, lanes),
                        __shfl_down_sync(kAllLanes, moments.m2, distance, lanes)};
    moments = merge(moments, other);
  }
  return {__shfl_sync(kAllLanes, moments.count, 0, lanes), __shfl_sync(kAllLanes, moments.mean, 0, lanes),
          __shfl_sync(kAllLanes, moments.m2, 0, lanes)};
}

// The same in fewer instructions, one level instead of five: around the mean of the first lane's piece.
template <int lanes = kWarp>
__device__ __forceinline__ Moments warp_merge_around(const Moments& mine) {
  const float reference = __shfl_sync(kAllLanes, mine.mean, 0, lanes);
  float count;
  if constexpr (lanes == kWarp) {
    count = static_cast<float>(__reduce_add_sync(kAllLanes, static_cast<int>(mine.count)));
  } else {
    count = warp_reduce<lanes>(mine.count);
  }
  const float moment = warp_reduce<lanes>(mine.count * (mine.mean - reference));
  if (lanes == kWarp && count == 0.0f) return {};
  const float distance = count > 0.0f ? __fdividef(moment, count) : 0.0f;
  const float apart = (mine.mean - reference) - distance;
  return {count, reference + distance,
          warp_reduce<lanes>(mine.count > 0.0f ? fmaf(mine.count * apart, apart, mine.m2) : 0.0f)};
}

// Over the block; every thread gets the same bits. Two calls in a row need a barrier between them, or two buffers.
__device__ __forceinline__ Moments block_merge(Moments moments, Moments (&partial)[kWarp]) {
  moments = warp_merge(moments);
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) return moments;
  if (lane == 0) partial[threadIdx.x / kWarp] = moments;
  __syncthreads();
  return warp_merge(lane < warps ? partial[lane] : Moments{});
}

}  // namespace warpsmith
