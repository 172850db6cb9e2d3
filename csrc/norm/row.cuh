// Device side of the row-wise normalisations: block sums, the scale of a row, weights in registers.
#pragma once

#include "device/add.h"
#include "device/block.h"
#include "device/convert.h"
#include "device/vec.h"
#include "device/warp.h"
#include "norm/mean_share.h"
#include "row/packed.h"

namespace warpsmith {

// 1 / sqrt(mean + eps) within 2 ulp, as PyTorch computes it.
__device__ __forceinline__ float reciprocal_rms(float sum, float inverse_count, float eps) {
  return rsqrtf(fmaf(sum, inverse_count, eps));
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
