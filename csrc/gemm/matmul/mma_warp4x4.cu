// Matrix product by mma.sync, tiles of 128 x 128: 2 x 4 warps, 4 x 4 mma of 16 x 8 each.
//   Against `mma_mma2x4`: a warp reads 96 rows and columns of operands for 64 x 32 sums, so that the tensor cores get 16
//   mma out of six reads of shared memory instead of one out of two; blocks load four times less for a product.
//   Lines of shared memory are padded by 16 bytes, which keeps ldmatrix free of bank conflicts.
//   Bound: loads and multiplications take turns, the other block of the multiprocessor fills in.
#include "gemm/store_pairs.cuh"
#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "host/registry.h"
#include "tile/copy.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {
namespace {

struct Tile {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4;
};
constexpr int kThreads = Share<Tile>::threads;

using TileA = OperandTile<Along::k, Tile::bm, Tile::bk, Padded>;
using TileB = OperandTile<Along::mn, Tile::bn, Tile::bk, Padded>;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_mma_warp4x4_kernel(const GemmArgs p) {
  __shared__ Stage<T, TileA, TileB> shared;
  const Origin block = origin_by_rows<Tile>(p);
  const WarpPlace<Tile> warp;
  TileCopy<T, TileA, kThreads> copy_a(p.a, 0, p.m, block.m, 0);
  TileCopy<T, TileB, kThreads> copy_b(p.b, 0, p.n, block.n, 0);
  const FragmentReader<Side::a, TileA> read_a(warp.m);
  const FragmentReader<Side::b, TileB> read_b(warp.n);
  WarpSums<T, Acc, Tile> warp_sums;

  for (int64_t k_left = p.k; k_left > 0; k_left -= Tile::bk) {
    // load
    const auto a_held = copy_a.fetch(k_left);
    const auto b_held = copy_b.fetch(k_left);
    copy_a.advance();
    copy_b.advance();
    __syncthreads();  // the operands of the step before have been read
    copy_a.put(shared.a, a_held);
    copy_b.put(shared.b, b_held);
    __syncthreads();

    // multiply
#pragma unroll
    for (int k = 0; k < Tile::bk; k += 16) {
      Fragments<Share<Tile>::wm, Share<Tile>::wn> fragments;
      fragments.read(read_a, shared.a, read_b, shared.b, k);
      warp_sums.add(fragments);
    }
  }
  store_pairs(p, warp_sums, block.m + warp.m, block.n + warp.n);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_warp4x4_kernel<T, Acc>>(block_per_tile<Tile>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"mma_warp4x4", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
