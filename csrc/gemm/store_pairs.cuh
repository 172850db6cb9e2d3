// A warp's sums from the registers of mma.sync to the product, two neighbours a store.
#pragma once

#include "device/convert.h"
#include "gemm/gemm.h"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// The product alone, of an even number of columns.
template <class T>
__device__ __forceinline__ void store_pair(const GemmArgs& p, int64_t row, int64_t col, float2 sums) {
  Vec<T, 2> out;
  from_float(out, {sums.x, sums.y});
  store(static_cast<T*>(p.d) + row * p.n + col, out);
}

// `m`, `n`: where the warp's share starts in the product.
template <class T, class Acc, class Tile>
__device__ __forceinline__ void store_pairs(const GemmArgs& p, const WarpSums<T, Acc, Tile>& warp, int64_t m,
                                            int64_t n) {
  const int lane = thread_again() % kWarp;
#pragma unroll
  for (int i = 0; i < warp.wm / 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = m + 16 * i + 8 * half + lane / 4;
#pragma unroll
      for (int j = 0; j < warp.wn / 8; ++j) {
        const int64_t col = n + 8 * j + lane % 4 * 2;
        if (row < p.m && col < p.n) store_pair<T>(p, row, col, warp.sums[i][j].pair(half));
      }
    }
  }
}

}  // namespace warpsmith
