// Matrix product by mma.sync at any alignment.
//   Against `mma_tn_stages_swizzle`: cp.async cannot bring rows that start at odd values; here they are loaded in pieces
//   of 2 to 16 bytes, as wide as the operand allows, put together in registers and stored to shared memory 16 bytes at a
//   time. Those of the next step are on their way while this one is multiplied. All layouts, batches, epilogues, slices
//   of k. Two blocks of 256 threads. Bound: load instructions.
#include "gemm/split.cuh"
#include "gemm/store_staged.cuh"
#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "host/registry.h"
#include "tile/narrow_copy.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {
namespace {

struct Tile {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 2;
};
constexpr int kThreads = Share<Tile>::threads;

template <Along a, Along b>
struct Layouts {
  using TileA = OperandTile<a, Tile::bm, Tile::bk, Swizzled>;
  using TileB = OperandTile<b, Tile::bn, Tile::bk, Swizzled>;
  static constexpr int shared = ring_bytes<Tile, Stage<uint16_t, TileA, TileB>>();
};

// Bytes an access.
struct Widths {
  int a, b;
};

template <class T, class Acc, class Layouts>
__global__ void __launch_bounds__(kThreads, 2)
    matmul_mma_unaligned_kernel(const GemmArgs p, const Split split, const Widths widths) {
  using TileA = typename Layouts::TileA;
  using TileB = typename Layouts::TileB;
  extern __shared__ __align__(128) uint4 ring[];
  auto* stages = reinterpret_cast<Stage<T, TileA, TileB>*>(ring);  // [2]

  const Place<Tile> block(p.m, p.n);
  const int64_t first_k = blockIdx.y * split.depth;
  const int64_t depth = p.k - first_k < split.depth ? p.k - first_k : split.depth;
  const WarpPlace<Tile> warp;
  NarrowCopy<T, TileA, kThreads> copy_a(p.a, widths.a, block.batch(), p.m, block.m(), first_k);
  NarrowCopy<T, TileB, kThreads> copy_b(p.b, widths.b, block.batch(), p.n, block.n(), first_k);
  const FragmentReader<Side::a, TileA> read_a(warp.m);
  const FragmentReader<Side::b, TileB> read_b(warp.n);
  WarpSums<T, Acc, Tile> warp_sums;

  const auto put = [&](int slot) {
    copy_a.put(stages[slot].a);
    copy_b.put(stages[slot].b);
  };
  const int tiles = static_cast<int>(ceil_div(depth, Tile::bk));
  const int tail = static_cast<int>(depth - int64_t{tiles - 1} * Tile::bk);
  const auto fetch = [&](int tile) {
    const int k_left = tile < tiles - 1 ? Tile::bk : (tile == tiles - 1 ? tail : 0);
    copy_a.fetch(k_left);
    copy_b.fetch(k_left);
  };
  fetch(0);
  put(0);
  __syncthreads();

  int slot = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    fetch(tile + 1);

    // multiply
#pragma unroll
    for (int k = 0; k < Tile::bk; k += 16) {
      Fragments<Share<Tile>::wm, Share<Tile>::wn> fragments;
      fragments.read(read_a, stages[slot].a, read_b, stages[slot].b, k);
      warp_sums.add(fragments);
    }
    slot ^= 1;
    put(slot);  // read in the step before the last barrier
    __syncthreads();
  }

  store_staged(p, split, warp_sums, ring, block);
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  return needs_tiles_in_grid(p);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  const TileCost cost{.bm = Tile::bm,
                      .bn = Tile::bn,
                      .bk = Tile::bk,
                      .blocks = 2,
                      .alone = 0.2f,
                      .full = 0.3f,
                      .fill = 128.0f,
                      .rate = 2e6f};
  const Split split = plan_tile(p, cost).split;
  const Widths widths{widest_pack(p.a, p.m, p.k, p.dtype), widest_pack(p.b, p.k, p.n, p.dtype)};
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    dispatch_layout(p, [&]<Along a, Along b>() {
      using Chosen = Layouts<a, b>;
      warpsmith::launch<&matmul_mma_unaligned_kernel<T, Acc, Chosen>>(
          split_grid<Tile>(p, split, kThreads, Chosen::shared), stream, with_wide_sums(p, split.count), split, widths);
    });
    if (split.count > 1) p.wide ? sum_splits<float>(p, split.count, stream) : sum_splits<T>(p, split.count, stream);
  });
}

const Register<GemmArgs> registered{"mma_unaligned", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
