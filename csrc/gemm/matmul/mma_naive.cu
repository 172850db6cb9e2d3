// Matrix product by mma.sync m16n8k16, a tile of 16 x 8 a warp.
//   Against `wmma_naive`: the fragments are ours. The 32 lanes copy 16 values along k of their warp's operands to shared
//   memory, 16 bytes each, and ldmatrix lays them over the lanes as the instruction wants them. The eight warps of a
//   block compute neighbouring tiles and share nothing but L1. Bound: the wait for each step's loads, and loads: 24 values for
//   every 128 multiplications of a lane.
#include "device/ptx/mma.h"
#include "gemm/store_pairs.cuh"
#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "host/registry.h"
#include "tile/copy.cuh"

namespace warpsmith {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

// Of a warp: one mma.
struct Tile {
  static constexpr int bm = 16, bn = 8, bk = 16;
};

// Of a block.
struct BlockTile {
  static constexpr int bm = 16, bn = kWarps * Tile::bn;
};

template <class T>
struct Operands {
  alignas(16) T a[Tile::bm][Tile::bk];
  alignas(16) T b[Tile::bk][Tile::bn];
};

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads) matmul_mma_naive_kernel(const GemmArgs p) {
  __shared__ Operands<T> shared[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const Origin block = origin_by_rows<BlockTile>(p);
  const int64_t m = block.m, n = block.n + warp * Tile::bn;
  Operands<T>& own = shared[warp];

  // A lane's 16 bytes: half a row of a, and for the lower half of the lanes a row of b.
  const int a_row = lane / 2, a_k = lane % 2 * 8, b_k = lane % 16;
  const T* a = static_cast<const T*>(p.a.data) + (m + a_row) * p.a.ld + a_k;  // [k]
  const T* b = static_cast<const T*>(p.b.data) + b_k * p.b.ld + n;            // [8]
  const bool a_inside = m + a_row < p.m, b_inside = n < p.n && lane < 16;

  MmaSum<T, Acc> sum;
  for (int64_t k = 0; k < p.k; k += Tile::bk) {
    // load
    const uint4 a_pack = a_inside && k + a_k < p.k ? *reinterpret_cast<const uint4*>(a) : uint4{};
    const uint4 b_pack = b_inside && k + b_k < p.k ? *reinterpret_cast<const uint4*>(b) : uint4{};
    a += Tile::bk;
    b += Tile::bk * p.b.ld;
    __syncwarp();  // the step before has been read
    *reinterpret_cast<uint4*>(&own.a[a_row][a_k]) = a_pack;
    if (lane < 16) *reinterpret_cast<uint4*>(&own.b[b_k][0]) = b_pack;
    __syncwarp();

    // multiply
    uint32_t a_fragment[4], b_fragment[2];
    ptx::ldmatrix(a_fragment, &own.a[lane % 16][lane / 16 * 8]);
    ptx::ldmatrix_trans(b_fragment, &own.b[lane % 16][0]);
    sum.add(a_fragment, b_fragment);
  }

  // write
  const int64_t col = n + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = m + lane / 4 + 8 * half;
    if (row < p.m && col < p.n) store_pair<T>(p, row, col, sum.pair(half));
  }
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_naive_kernel<T, Acc>>(block_per_tile<BlockTile>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"mma_naive", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
