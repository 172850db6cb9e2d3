// What the rungs by mma.sync m16n8k32 share: tiles, and how sums leave. Operands are those of m16n8k16 with a pair of values
// for each of 16 bits, so tiles, copies and fragments are counted in pairs.
#pragma once

#include "device/convert.h"
#include "gemm/mma_groups.cuh"
#include "gemm/promoted_sums.cuh"
#include "gemm/scaled_grouped_matmul/scaled_grouped_matmul.h"

namespace warpsmith {

// Where sm_90 widens values to f16, a warp's share of 32 x 32 leaves registers for that.
struct ScaledManyRows {
  static constexpr int bm = 64, bn = 64, bk = 64, warps_m = 2, warps_n = 2, stages = 3, blocks = 2;
};
struct ScaledFewRows {
  static constexpr int bm = 32, bn = 128, bk = 64, warps_m = 1, warps_n = 4, stages = 3, blocks = 2;
};

// Bytes of a matrix as pairs of values.
__device__ __forceinline__ Matrix in_pairs(const Matrix& x, int64_t skipped) {
  return {.data = static_cast<const char*>(x.data) + skipped, .ld = x.ld / 2, .batch = 0, .order = x.order};
}

__device__ __forceinline__ void store_pair(const ScaledGroupedArgs& p, int64_t at, float2 pair, bool both) {
  const auto as = [&]<class Out>() {
    Vec<Out, 2> out;
    from_float(out, {pair.x, pair.y});
    Out* to = static_cast<Out*>(p.d) + at;
    if (p.n % 2 == 0) {
      store(to, out);
    } else {
      to[0] = out[0];
      if (both) to[1] = out[1];
    }
  };
  switch (p.out) {
    case Dtype::f32:
      return as.template operator()<float>();
    case Dtype::f16:
      return as.template operator()<f16>();
    default:
      return as.template operator()<bf16>();
  }
}

// Scales the warp's sums of a tile and writes them. `first`: the row of d where those of the group begin.
template <class Sums, class Tile>
__device__ __forceinline__ void store_scaled(const Sums& sums, const ScaledGroupedArgs& p, const GroupTile<Tile>& tile,
                                             int64_t first) {
  const WarpPlace<Tile> warp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* of_rows = p.scale_x + (p.along_k ? tile.group * p.group_x : first * p.step_x);
  const float* of_columns = p.scale_w + tile.group * p.group_w;
  const bool scales = tile.span.first < tile.span.end;  // without products zeros, whatever the scales
#pragma unroll
  for (int j = 0; j < sums.wn / 8; ++j) {
    const int64_t col = tile.block.n() + warp.n + 8 * j + lane % 4 * 2;
    if (col >= p.n) continue;
    const bool both = col + 1 < p.n;
    const float* scales_w = of_columns + col * p.step_w;
    const float2 scale_w = {scales ? scales_w[0] : 0.0f, scales && both ? scales_w[p.step_w] : 0.0f};
#pragma unroll
    for (int i = 0; i < 2 * (sums.wm / 16); ++i) {
      const int64_t row = tile.block.m() + warp.m + 8 * i + lane / 4;
      if (row >= tile.m) continue;
      const float scale_x = scales ? of_rows[row * p.step_x] : 0.0f;
      const float2 sum = sums.sums[i / 2][j].pair(i % 2);
      store_pair(p, (first + row) * p.n + col, {sum.x * (scale_x * scale_w.x), sum.y * (scale_x * scale_w.y)}, both);
    }
  }
}

}  // namespace warpsmith
