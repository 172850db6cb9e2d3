// Sums of fp8 by mma.sync in two levels. The fp8 tensor cores of sm_89 keep fewer bits of a sum than f32 has, so 128 values of
// k are added up there, and then to others in f32. Elsewhere there are none for mma.sync: operands are widened to f16, and
// sums are those of f32 already.
#pragma once

#include "gemm/fp8_pair.cuh"
#include "gemm/mma_tile.cuh"

namespace warpsmith {

#ifdef __CUDA_ARCH__
inline constexpr bool kCoarseFp8Sums = __CUDA_ARCH__ == 890;
#else
inline constexpr bool kCoarseFp8Sums = false;
#endif

// In place of WarpSums while a tile is multiplied; `sums` has the result once finish() was called. Q: int8_t or
// Fp8Products.
template <class Q, class Acc, class Tile, bool coarse = kCoarseFp8Sums && kAreFp8<Q>>
struct PromotedSums {
  WarpSums<Q, Acc, Tile> sums;

  template <class Fragments>
  __device__ __forceinline__ void add(const Fragments& x) {
    sums.add(x);
  }
  __device__ __forceinline__ void finish() {}
};

template <class Q, class Acc, class Tile>
struct PromotedSums<Q, Acc, Tile, true> {
  static constexpr int kSteps = 128 / 32;  // of an instruction each
  WarpSums<Q, Acc, Tile> sums, own;
  int steps = 0;

  template <class Fragments>
  __device__ __forceinline__ void add(const Fragments& x) {
    own.add(x);
    if (++steps % kSteps == 0) finish();
  }
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < sums.wm / 16; ++i) {
#pragma unroll
      for (int j = 0; j < sums.wn / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums.sums[i][j].value[e] += own.sums[i][j].value[e];
          own.sums[i][j].value[e] = 0.0f;
        }
      }
    }
  }
};

}  // namespace warpsmith
