// TF32 product, mma.m16n8k8.
//   Against `wmma_swizzle`: the layout of fragments is known, so that four values leave shared memory with an
//   instruction (ldmatrix, or a vector load where the operand's own index is innermost), from tiles that are swizzled
//   instead of padded, and operands of either order are read as they lie. Every value is rounded as it is loaded.
//   Bound: a warp waits for its fragments before it multiplies, and reads 96 values for 64 x 32 of the product.
#include "device/block_order.h"
#include "device/pipeline.h"
#include "device/ptx/convert.h"
#include "device/ptx/mma.h"
#include "gemm/matmul_tf32/matmul_tf32.h"
#include "gemm/matmul_tf32/tile.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kGroup = 8;

struct Tile {
  static constexpr int bm = 128, bn = 128, bk = 16, wm = 64, wn = 32, stages = 4, blocks = 1;
};

template <class Operands>
__global__ void __launch_bounds__(Config<Tile, Operands>::threads, Tile::blocks)
    matmul_tf32_mma_kernel(const Tf32Args p, const int tiles_m, const int tiles_n) {
  using Config = Config<Tile, Operands>;
  using CopiesA = TileCopies<typename Config::A>;
  using CopiesB = TileCopies<typename Config::B>;
  extern __shared__ uint4 shared[];
  float* ring = reinterpret_cast<float*>(shared);  // [stages, tile of a and tile of b]
  const TileCoord tile = grouped_tile(blockIdx.x, tiles_m, tiles_n, kGroup);
  const int64_t block_row = tile.m * Tile::bm, block_col = tile.n * Tile::bn;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp % Config::warps_m * Tile::wm, warp_col = warp / Config::warps_m * Tile::wn;

  CopiesA gA(p.a, 0, block_row, p.m, 0);
  CopiesB gB(p.b, 0, block_col, p.n, 0);
  const auto steps_a = CopiesA::steps(p.a);
  const auto steps_b = CopiesB::steps(p.b);
  int64_t k_left = p.k;  // of the tile to be copied and those after it
  const auto copy_tile = [&](int slot) {
    float* to = ring + slot * Config::stage;
    const int k_here = static_cast<int>(max(min(k_left, int64_t{Tile::bk}), int64_t{0}));
#pragma unroll
    for (int i = 0; i < CopiesA::count; ++i) gA.start(to, i, k_here, steps_a);
#pragma unroll
    for (int i = 0; i < CopiesB::count; ++i) gB.start(to + OperandTile<typename Config::A>::size, i, k_here, steps_b);
    gA.advance(steps_a);
    gB.advance(steps_b);
    k_left -= Tile::bk;
    ptx::cp_async_commit();
  };

  // fill the ring, but for one slot
  RingSlot<Tile::stages> filled, used;
  for (; filled.slot < Tile::stages - 1; filled.advance()) copy_tile(filled.slot);

  const int lane_a = first_fragment<typename Config::A>(warp_row);
  const int lane_b = first_fragment<typename Config::B>(warp_col);
  const int rows_left = static_cast<int>(min(p.m - block_row - warp_row, int64_t{Tile::wm}));
  const int cols_left = static_cast<int>(min(p.n - block_col - warp_col, int64_t{Tile::wn}));
  float* out = static_cast<float*>(p.d) + (block_row + warp_row) * p.n + block_col + warp_col;
  Sums<Tile> sums, joined;
  joined.clear();
  const int depth = static_cast<int>(ceil_div(p.k, Tile::bk));  // in tiles
  for (int done = 0; done < depth;) {
    const int stop = min(depth, done + kTensorCoreDepth / Tile::bk);
    sums.clear();
    for (; done < stop; ++done) {
      ptx::cp_async_wait<Tile::stages - 2>();
      __syncthreads();  // the tile is there, and the one before it is no longer read
      copy_tile(filled.slot);
      const float* sA = ring + used.slot * Config::stage;
      const float* sB = sA + OperandTile<typename Config::A>::size;
#pragma unroll
      for (int step = 0; step < Config::steps; ++step) {
        Fragments<Tile> fragments;
        load_fragment<typename Config::A>(fragments.a, sA, lane_a, step);
        load_fragment<typename Config::B>(fragments.b, sB, lane_b, step);
#pragma unroll
        for (int i = 0; i < Fragments<Tile>::pairs; ++i) {
          for (uint32_t& value : fragments.pair(i)) value = ptx::tf32_from_float(__uint_as_float(value));
        }
        multiply(sums, fragments);
      }
      filled.advance();
      used.advance();
    }
    joined.add(sums);
  }
  write(out, p.n, rows_left, cols_left, joined, false);
}

const char* takes(const Tf32Args& p) {
  if (const char* reason = needs_plain(p)) return reason;
  return needs_packs_16(p);
}

void launch(const Tf32Args& p, cudaStream_t stream) {
  const int tiles_m = static_cast<int>(ceil_div(p.m, Tile::bm)), tiles_n = static_cast<int>(ceil_div(p.n, Tile::bn));
  const auto blocks = static_cast<unsigned>(int64_t{tiles_m} * tiles_n);
  dispatch_orders(p, [&]<Order a, Order b>() {
    using Packed = Operands<a, b, 4>;
    warpsmith::launch<&matmul_tf32_mma_kernel<Packed>>(
        {blocks, Config<Tile, Packed>::threads, Config<Tile, Packed>::shared}, stream, p, tiles_m, tiles_n);
  });
}

const Register<Tf32Args> registered{"mma", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
