// The kernel of the tensor-core rungs: m16n8k32, whose operands are those of m16n8k16 with a pair of values for each of
// 16 bits. So tiles, copies and fragments are counted in pairs.
#pragma once

#include <type_traits>

#include "gemm/mma_tile.cuh"
#include "gemm/promoted_sums.cuh"
#include "gemm/scaled_matmul/block_sums.cuh"
#include "gemm/scaled_matmul/result.cuh"
#include "host/launch.h"

namespace warpsmith {

__device__ __forceinline__ Matrix in_pairs(const Matrix& x) {
  return {.data = x.data, .ld = x.ld / 2, .batch = 0, .order = x.order};
}

// Products: int8_t or Fp8Products, of a and b; Acc: of their sums; Out: of d, or AnyOut.
template <class Products_, class Acc_, class Out_>
struct ScaledTypes {
  using Products = Products_;
  using Acc = Acc_;
  using Out = Out_;
  static constexpr bool blocks = false;
};

// With scales of blocks, for every type of d.
template <class Products>
struct BlockScaledTypes : ScaledTypes<Products, float, AnyOut> {
  static constexpr bool blocks = true;
};

// Scales the warp's sums of a tile, unless they are scaled, and writes them.
template <class Out, bool scaled, class Sums, class Tile>
__device__ __forceinline__ void store_scaled(const Sums& sums, const ScaledMatmulArgs& p, const Place<Tile>& block,
                                             const WarpPlace<Tile>& warp) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool pairs = p.n % 2 == 0;
  Out* d = static_cast<Out*>(p.d);
#pragma unroll
  for (int j = 0; j < sums.wn / 8; ++j) {
    const int64_t col = block.n() + warp.n + 8 * j + lane % 4 * 2;
    if (col >= p.n) continue;
    const bool both = col + 1 < p.n;
    float2 scale_b = {1.0f, 1.0f};
    if constexpr (!scaled) {
      const float* scales_b = p.scale_b.data + col * p.scale_b.step;
      scale_b = {scales_b[0], both ? scales_b[p.scale_b.step] : 0.0f};
    }
#pragma unroll
    for (int i = 0; i < 2 * (sums.wm / 16); ++i) {
      const int64_t row = block.m() + warp.m + 8 * i + lane / 4;
      if (row >= p.m) continue;
      const float scale_a = scaled ? 1.0f : p.scale_a.data[row * p.scale_a.step];
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

// Calls body.template operator()<Out>(), of AnyOut with the type that the call's result has.
template <class Out, class Body>
__device__ __forceinline__ void with_out(Dtype dtype, Body&& body) {
  if constexpr (!std::is_same_v<Out, AnyOut>) {
    body.template operator()<Out>();
  } else if (dtype == Dtype::f32) {
    body.template operator()<float>();
  } else if (dtype == Dtype::f16) {
    body.template operator()<f16>();
  } else if (dtype == Dtype::bf16) {
    body.template operator()<bf16>();
  } else {
    body.template operator()<EitherFp8>();
  }
}

template <class Types, class Config>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    scaled_matmul_mma_kernel(const ScaledMatmulArgs p) {
  using Tile = typename Config::Tile;
  using Products = typename Types::Products;
  extern __shared__ __align__(128) uint4 ring[];
  const Place<Tile> block(p.m, p.n);
  const WarpPlace<Tile> warp;
  const Matrix a = in_pairs(p.a), b = in_pairs(p.b);
  const TileOperands operands{a, b, p.m, p.n, 0, p.k / 2};
  const auto finish = [&](const auto& sums) {
    with_out<typename Types::Out>(p.out, [&]<class Out>() { store_scaled<Out, Types::blocks>(sums, p, block, warp); });
  };
  if constexpr (Types::blocks) {
    BlockSums<Products, Tile> scaled(p, block, warp);
    multiply_tile<Config, uint16_t>(scaled, ring, operands, block, warp);
    finish(scaled.sums);
  } else {
    PromotedSums<Products, typename Types::Acc, Tile> promoted;
    multiply_tile<Config, uint16_t>(promoted, ring, operands, block, warp);
    promoted.finish();
    finish(promoted.sums);
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
