// Matrix product by wmma, tiles of 128 x 128: 4 x 2 warps, 2 x 4 fragments of 16 x 16 each.
//   Against `wmma_mma4x2`: a warp reads six fragments of operands for eight multiplications, where it read two for one,
//   and blocks load three times less for a product. Bound: loads and multiplications take turns.
#include "gemm/tensor_core.h"
#include "gemm/tile_copy.cuh"
#include "gemm/tile_origin.cuh"
#include "gemm/wmma_tile.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Tile {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 4, warps_n = 2;
};
constexpr int kThreads = Share<Tile>::threads;

using TileA = OperandTile<Along::k, Tile::bm, Tile::bk, Padded>;
using TileB = OperandTile<Along::mn, Tile::bn, Tile::bk, Padded>;

template <class T, class Acc>
union Shared {
  Stage<T, TileA, TileB> stage;
  WmmaPatch<Acc> patches[Share<Tile>::warps];  // after the last step
};

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_wmma_warp2x4_kernel(const GemmArgs p) {
  __shared__ Shared<T, Acc> shared;
  const Origin block = origin_by_rows<Tile>(p);
  TileCopy<T, TileA, kThreads> copy_a(p.a, 0, p.m, block.m, 0);
  TileCopy<T, TileB, kThreads> copy_b(p.b, 0, p.n, block.n, 0);
  WmmaSums<T, Acc, Tile, TileA, TileB> sums;

  for (int64_t k_left = p.k; k_left > 0; k_left -= Tile::bk) {
    // load
    copy_a.copy(shared.stage.a, k_left);
    copy_b.copy(shared.stage.b, k_left);
    copy_a.advance();
    copy_b.advance();
    __syncthreads();

    sums.add(shared.stage);
    __syncthreads();  // the next step overwrites the operands
  }
  sums.store(p, shared.patches, block.m, block.n);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  dispatch_tensor_core(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_warp2x4_kernel<T, Acc>>(block_per_tile<Tile>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_warp2x4", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
