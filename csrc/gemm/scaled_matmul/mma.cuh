// The kernel of the tensor-core rungs: m16n8k32, whose operands are those of m16n8k16 with a pair of values for each of
// 16 bits. So tiles, copies and fragments are counted in pairs.
#pragma once

#include "gemm/mma_tile.cuh"
#include "gemm/promoted_sums.cuh"
#include "gemm/scaled_matmul/result.cuh"
#include "host/launch.h"

namespace warpsmith {

__device__ __forceinline__ Matrix in_pairs(const Matrix& x) {
  return {.data = x.data, .ld = x.ld / 2, .batch = 0, .order = x.order};
}

// Q: of a and b; Acc: of their sums; Out: of d.
template <class Q_, class Acc_, class Out_>
struct ScaledTypes {
  using Q = Q_;
  using Acc = Acc_;
  using Out = Out_;
};

template <class Types, class Config>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    scaled_matmul_mma_kernel(const ScaledMatmulArgs p) {
  using Tile = typename Config::Tile;
  using Out = typename Types::Out;
  extern __shared__ __align__(128) uint4 ring[];
  const Place<Tile> block(p.m, p.n);
  const WarpPlace<Tile> warp;
  const Matrix a = in_pairs(p.a), b = in_pairs(p.b);
  PromotedSums<typename Types::Q, typename Types::Acc, Tile> promoted;
  multiply_tile<Config, uint16_t>(promoted, ring, {a, b, p.m, p.n, 0, p.k / 2}, block, warp);
  promoted.finish();

  // scale and write
  const auto& sums = promoted.sums;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool pairs = p.n % 2 == 0;
  Out* d = static_cast<Out*>(p.d);
#pragma unroll
  for (int j = 0; j < sums.wn / 8; ++j) {
    const int64_t col = block.n() + warp.n + 8 * j + lane % 4 * 2;
    if (col >= p.n) continue;
    const bool both = col + 1 < p.n;
    const float* scales_b = p.scale_b.data + col * p.scale_b.step;
    const float2 scale_b = {scales_b[0], both ? scales_b[p.scale_b.step] : 0.0f};
#pragma unroll
    for (int i = 0; i < 2 * (sums.wm / 16); ++i) {
      const int64_t row = block.m() + warp.m + 8 * i + lane / 4;
      if (row >= p.m) continue;
      const float scale_a = p.scale_a.data[row * p.scale_a.step];
      const float2 sum = sums.sums[i / 2][j].pair(i % 2);
      Vec<Out, 2> out;
      round_result(out, {sum.x * (scale_a * scale_b.x), sum.y * (scale_a * scale_b.y)}, p);
      Out* to = d + row * p.n + col;
      if (pairs) {
        store(to, out);
      } else {
        to[0] = out[0];
        if (both) to[1] = out[1];
      }
    }
  }
}

// `most_shared`: of a block, on the least of the GPUs that the tile is for.
template <class Types, class Tile, int most_shared>
void launch_scaled(const ScaledMatmulArgs& p, cudaStream_t stream) {
  using Config = MmaConfig<Tile, Along::k, Along::k>;
  static_assert(Config::shared <= most_shared, "a block of every GPU that the tile is for has room for the ring");
  const int64_t tiles = ceil_div(p.m, Tile::bm) * ceil_div(p.n, Tile::bn);
  const LaunchConfig config{static_cast<unsigned>(tiles), Config::threads, Config::shared};
  launch<&scaled_matmul_mma_kernel<Types, Config>>(config, stream, p);
}

// Whether tiles of this size keep every multiprocessor busy.
template <class Tile>
bool fills_gpu(const ScaledMatmulArgs& p) {
  return ceil_div(p.m, Tile::bm) * ceil_div(p.n, Tile::bn) >= p.sm_count;
}

}  // namespace warpsmith
