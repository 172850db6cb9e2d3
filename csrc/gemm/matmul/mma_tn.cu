// Matrix product by mma.sync, b column-major.
//   Against `mma_dsmem`: both operands run along k, as mma wants them, and ldmatrix transposes neither. What the layout
//   of BLAS's TN is worth by itself: nothing is padded or ordered better. Bound: as `mma_dsmem`.
#include "device/pipeline.h"
#include "gemm/store_pairs.cuh"
#include "gemm/tensor_core.h"
#include "gemm/tile_copy.cuh"
#include "gemm/tile_origin.cuh"
#include "gemm/warp_mma.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Tile {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 4;
};
constexpr int kThreads = Share<Tile>::threads;

using TileA = OperandTile<Along::k, Tile::bm, Tile::bk, Padded>;
using TileB = OperandTile<Along::k, Tile::bn, Tile::bk, Padded>;

template <class T>
constexpr int kShared = Tile::stages * static_cast<int>(sizeof(Stage<T, TileA, TileB>));

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_mma_tn_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  auto* stages = reinterpret_cast<Stage<T, TileA, TileB>*>(ring);  // [Tile::stages]
  const Origin block = origin_by_rows<Tile>(p);
  const WarpPlace<Tile> warp;
  TileCopy<T, TileA, kThreads> copy_a(p.a, 0, p.m, block.m, 0);
  TileCopy<T, TileB, kThreads> copy_b(p.b, 0, p.n, block.n, 0);
  const FragmentReader<Side::a, TileA> read_a(warp.m);
  const FragmentReader<Side::b, TileB> read_b(warp.n);
  WarpSums<T, Acc, Tile> warp_sums;

  const auto load = [&](int slot, int64_t k_left) {
    copy_a.start(stages[slot].a, k_left);
    copy_b.start(stages[slot].b, k_left);
    ptx::cp_async_commit();
    copy_a.advance();
    copy_b.advance();
  };
#pragma unroll
  for (int slot = 0; slot < Tile::stages - 1; ++slot) load(slot, p.k - slot * Tile::bk);

  RingSlot<Tile::stages> at, ahead{Tile::stages - 1};
  for (int64_t k_left = p.k; k_left > 0; k_left -= Tile::bk) {
    ptx::cp_async_wait<Tile::stages - 2>();
    __syncthreads();  // this step's operands are here, and the slot of the step before has been read
    load(ahead.slot, k_left - (Tile::stages - 1) * Tile::bk);

    // multiply
#pragma unroll
    for (int k = 0; k < Tile::bk; k += 16) {
      Fragments<Share<Tile>::wm, Share<Tile>::wn> fragments;
      fragments.read(read_a, stages[at.slot].a, read_b, stages[at.slot].b, k);
      warp_sums.add(fragments);
    }
    at.advance();
    ahead.advance();
  }
  store_pairs(p, warp_sums, block.m + warp.m, block.n + warp.n);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  dispatch_tensor_core(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_tn_kernel<T, Acc>>(block_per_tile<Tile>(p, kThreads, kShared<T>), stream, p);
  });
}

const Register<GemmArgs> registered{"mma_tn", /*min_sm=*/80, takes_tn, launch};

}  // namespace
}  // namespace warpsmith
