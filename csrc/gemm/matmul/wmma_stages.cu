// Matrix product by wmma, a ring of four stages.
//   Against `wmma_dbuf_async`: loads are started three steps ahead, long enough for DRAM to answer. Steps are 16 along k,
//   so that the ring fits the 48 KB that every kernel may use. Bound: shared memory, and the barrier of every step.
#include "device/pipeline.h"
#include "gemm/tensor_core.h"
#include "gemm/tile_copy.cuh"
#include "gemm/tile_origin.cuh"
#include "gemm/wmma_tile.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Tile {
  static constexpr int bm = 128, bn = 128, bk = 16, warps_m = 4, warps_n = 2, stages = 4;
};
constexpr int kThreads = Share<Tile>::threads;

using TileA = OperandTile<Along::k, Tile::bm, Tile::bk, Padded>;
using TileB = OperandTile<Along::mn, Tile::bn, Tile::bk, Padded>;

template <class T, class Acc>
union Shared {
  Stage<T, TileA, TileB> stages[Tile::stages];
  WmmaPatch<Acc> patches[Share<Tile>::warps];  // after the last step
};

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_wmma_stages_kernel(const GemmArgs p) {
  __shared__ Shared<T, Acc> shared;
  auto& stages = shared.stages;
  const Origin block = origin_by_rows<Tile>(p);
  TileCopy<T, TileA, kThreads> copy_a(p.a, 0, p.m, block.m, 0);
  TileCopy<T, TileB, kThreads> copy_b(p.b, 0, p.n, block.n, 0);
  WmmaSums<T, Acc, Tile, TileA, TileB> sums;

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
    sums.add(stages[at.slot]);
    at.advance();
    ahead.advance();
  }

  // write
  ptx::cp_async_wait<0>();
  __syncthreads();  // the ring is free
  sums.store(p, shared.patches, block.m, block.n);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  dispatch_tensor_core(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_stages_kernel<T, Acc>>(block_per_tile<Tile>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_stages", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
