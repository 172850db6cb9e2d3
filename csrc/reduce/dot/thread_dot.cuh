// The running dot product of a thread in f32, a vector of each operand at a time.
#pragma once

#include "host/registry.h"
#include "reduce/dot/dot.h"
#include "reduce/span.cuh"
#include "reduce/thread_sum.cuh"

namespace warpsmith {

// Lanes as in ThreadSum. A product and its addition round once together.
template <class T, int width>
class ThreadDot {
  static constexpr int kLanes = width < 8 ? width : 8;
  float lane_[kLanes]{};

 public:
  __device__ __forceinline__ void add(const Vec<T, width>& x, const Vec<T, width>& y) {
    float a[width], b[width];
    to_float(a, x);
    to_float(b, y);
#pragma unroll
    for (int i = 0; i < width; ++i) lane_[i % kLanes] = fmaf(a[i], b[i], lane_[i % kLanes]);
  }

  __device__ __forceinline__ double total() const {
    float sum[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sum[i] = lane_[i];
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
  }
};

// The product of the values outside of the accesses, one to a thread of the first block.
template <class T, int width>
__device__ __forceinline__ float dot_of_ends(const Span<T, width>& x, const Span<T, width>& y) {
  if (blockIdx.x > 0 || threadIdx.x >= x.ends()) return 0.0f;
  return to_float(x.end(threadIdx.x)) * to_float(y.end(threadIdx.x));
}

}  // namespace warpsmith
