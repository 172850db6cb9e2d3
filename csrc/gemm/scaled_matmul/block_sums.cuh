// Sums of fp8 by mma.sync with scales of blocks: those of a block of k are multiplied by its scales as they join the
// others. So they leave the tensor cores as often as those of promoted_sums.cuh, also where the bits do not ask for it.
#pragma once

#include "gemm/fp8_pair.cuh"
#include "gemm/mma_tile.cuh"
#include "gemm/scaled_matmul/scaled_matmul.h"

namespace warpsmith {

// In place of WarpSums while a tile is multiplied; `sums` has the result. `Products`: Fp8Products.
template <class Products, class Tile>
class BlockSums {
 public:
  WarpSums<Products, float, Tile> sums;

  __device__ __forceinline__ BlockSums(const ScaledMatmulArgs& p, const Place<Tile>& block, const WarpPlace<Tile>& warp)
      : p_(p),
        scale_b_(p.scale_b.data + block.n() / kScaleBlock * p.scale_b.step),
        row_(block.m() + warp.m + static_cast<int>(threadIdx.x) % kWarp / 4) {
    load_scales();
  }

  template <class Fragments>
  __device__ __forceinline__ void add(const Fragments& x) {
    own_.add(x);
    if (++steps_ % kSteps == 0) join();
  }

 private:
  static constexpr int kSteps = Tile::bk / 16, kRows = Share<Tile>::wm / 8;
  static_assert(2 * Tile::bk == kScaleBlock, "a stage of the ring is a block of k, the last with zeros behind it");
  static_assert(kScaleBlock % Tile::bn == 0, "a tile's columns share a scale");

  // The scales of the next block travel while it is multiplied.
  __device__ __forceinline__ void load_scales() {
    of_b_ = scale_b_[block_ * p_.scale_b.step_k];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = row_ + 8 * i;
      of_a_[i] = row < p_.m ? p_.scale_a.data[row * p_.scale_a.step + block_ * p_.scale_a.step_k] : 0.0f;
    }
  }

  // Once for a block, the last included: another time, sums of 0 by an infinite scale would leave NaN.
  __device__ __forceinline__ void join() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float scale = of_a_[i] * of_b_;
#pragma unroll
      for (int j = 0; j < sums.wn / 8; ++j) {
#pragma unroll
        for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; ++e) {
          float& own = own_.sums[i / 2][j].value[e];
          float& sum = sums.sums[i / 2][j].value[e];
          sum = fmaf(own, scale, sum);
          own = 0.0f;
        }
      }
    }
    if (++block_ * kScaleBlock < p_.k) load_scales();
  }

  WarpSums<Products, float, Tile> own_;
  const ScaledMatmulArgs& p_;
  const float* scale_b_;  // of the tile's columns
  int64_t row_, block_ = 0;
  float of_a_[kRows], of_b_;
  int steps_ = 0;
};

}  // namespace warpsmith
