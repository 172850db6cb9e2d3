// Matrix product by mma.sync, tiles of 32 x 32: 2 x 4 warps, one mma each.
//   Against `mma_naive`: the block copies its operands once for all its warps, so that a value of a is loaded for 32
//   columns and one of b for 32 rows. Bound: the wait for loads and two barriers at every step of 16 along k.
#include "device/ptx/mma.h"
#include "gemm/store_pairs.cuh"
#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "host/registry.h"
#include "tile/copy.cuh"

namespace warpsmith {
namespace {

struct Tile {
  static constexpr int bm = 32, bn = 32, bk = 16, warps_m = 2, warps_n = 4;
};
constexpr int kThreads = Share<Tile>::threads;

using TileA = OperandTile<Along::k, Tile::bm, Tile::bk, Padded>;
using TileB = OperandTile<Along::mn, Tile::bn, Tile::bk, Padded>;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads) matmul_mma_mma2x4_kernel(const GemmArgs p) {
  __shared__ Stage<T, TileA, TileB> shared;
  const Origin block = origin_by_rows<Tile>(p);
  const WarpPlace<Tile> warp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  TileCopy<T, TileA, kThreads> copy_a(p.a, 0, p.m, block.m, 0);
  TileCopy<T, TileB, kThreads> copy_b(p.b, 0, p.n, block.n, 0);

  MmaSum<T, Acc> sum;
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
    uint32_t a[4], b[2];
    ptx::ldmatrix(a, shared.a + TileA::at(warp.m + lane % 16, lane / 16 * 8));
    ptx::ldmatrix_trans(b, shared.b + TileB::at(lane % 16, warp.n));
    sum.add(a, b);
  }

  // write
  const int64_t col = block.n + warp.n + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = block.m + warp.m + lane / 4 + 8 * half;
    if (row < p.m && col < p.n) store_pair<T>(p, row, col, sum.pair(half));
  }
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_mma2x4_kernel<T, Acc>>(block_per_tile<Tile>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"mma_mma2x4", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
