// Sums of rows of weights (m) and vectors (n) as the tensor cores leave them in the lanes of a warp.
#pragma once

#include "device/warp.h"

namespace warpsmith {

template <int rows, int vectors>
class MmaRingSums {
 public:
  // to: [vectors, pitch]
  template <int pitch>
  __device__ __forceinline__ void store(float* to) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to[(8 * n + lane % 4 * 2 + i % 2) * pitch + 16 * m + lane / 4 + i / 2 * 8] = sum_[m][n][i];
        }
      }
    }
  }

 protected:
  static constexpr int kTilesM = rows / 16, kTilesN = vectors / 8;
  static_assert(rows % 16 == 0 && vectors % 8 == 0, "whole tiles of mma");
  float sum_[kTilesM][kTilesN][4]{};
};

}  // namespace warpsmith
