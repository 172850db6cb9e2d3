// Device side of the row-wise normalisations: block sums, the scale of a row, weights in registers.
#pragma once

#include "device/add.h"
#include "device/convert.h"
#include "device/vec.h"
#include "device/warp.h"
#include "norm/mean_share.h"

namespace warpsmith {

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

// 1 / sqrt(mean + eps) within 2 ulp, as PyTorch computes it.
__device__ __forceinline__ float reciprocal_rms(float sum, float inverse_count, float eps) {
  return rsqrtf(fmaf(sum, inverse_count, eps));
}

// Makes the compiler forget what it derived from a pack: it would hold 16-bit values as floats, in twice the
// registers.
template <class T, int n>
__device__ __forceinline__ void keep_packed(Vec<T, n>& x) {
  static_assert(sizeof(x) == 16);
  uint4& raw = reinterpret_cast<uint4&>(x);
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
}

// n weights of a row as they lie in memory, or n times what stands for a weight that there is not.
template <class W, int n>
struct WeightPack {
  static constexpr int kMost = 16 / static_cast<int>(sizeof(W)), kWidth = n < kMost ? n : kMost;
  Vec<W, kWidth> part[n / kWidth];
  // Chosen between as words: 16-bit values would be put together one by one.
  static constexpr int kBytes = kWidth * static_cast<int>(sizeof(W));
  using Word = std::conditional_t<kBytes % 4 == 0, uint32_t, W>;
  using Words = Vec<Word, kBytes / static_cast<int>(sizeof(Word))>;

  __device__ __forceinline__ void load_from(const W* weight, int64_t col, float absent = 1.0f) {
#pragma unroll
    for (int i = 0; i < n / kWidth; ++i) {
      Words words;
      if (weight != nullptr) {
        words = *reinterpret_cast<const Words*>(weight + col + i * kWidth);
      } else {
        Vec<W, kWidth> all;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) all[j] = from_float<W>(absent);
        words = reinterpret_cast<const Words&>(all);
      }
      reinterpret_cast<Words&>(part[i]) = words;
    }
  }

  // As keep_packed.
  __device__ __forceinline__ void keep() {
    if constexpr (sizeof(part[0]) == 16) {
#pragma unroll
      for (int i = 0; i < n / kWidth; ++i) keep_packed(part[i]);
    }
  }

  __device__ __forceinline__ void to_floats(float (&to)[n]) const {
#pragma unroll
    for (int i = 0; i < n / kWidth; ++i) {
      float values[kWidth];
      to_float(values, part[i]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) to[i * kWidth + j] = values[j];
    }
  }
};

}  // namespace warpsmith
