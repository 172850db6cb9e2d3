// A few rows of weights per block, all of whose threads walk along them together: a block has whole stretches of its rows
// under way, and every value of x that a thread reads serves all of them.
#pragma once

#include "device/start_early.h"
#include "device/warp.h"
#include "gemm/skinny_sum.cuh"
#include "gemm/slice_dot.cuh"
#include "host/ceil_div.h"
#include "host/launch.h"

namespace warpsmith {

// What a block does. Registers are budgeted for `blocks` of them per multiprocessor.
template <class Slice_, int threads_, int blocks_>
struct SkinnyBlockTile {
  using Slice = Slice_;
  static constexpr int rows = Slice::rows, vectors = Slice::vectors, threads = threads_, blocks = blocks_;
};

namespace {

template <class W, class X, class Tile, class Args>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks) skinny_block_kernel(const Args a) {
  constexpr int kWarps = Tile::threads / kWarp, kSums = Tile::rows * Tile::vectors;
  static_assert(kSums <= Tile::threads, "a thread finishes a sum");
  __shared__ float shared[kWarps][kSums];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first_row = int64_t{blockIdx.x} * Tile::rows;
  const int first_vector = static_cast<int>(blockIdx.y) * Tile::vectors;
  const uint4* weights[Tile::rows];
  const uint4* x[Tile::vectors];
#pragma unroll
  for (int i = 0; i < Tile::rows; ++i) {
    const int64_t row = first_row + i < a.m ? first_row + i : a.m - 1;
    weights[i] = reinterpret_cast<const uint4*>(static_cast<const W*>(a.a) + row * a.a_row);
  }
#pragma unroll
  for (int i = 0; i < Tile::vectors; ++i) {
    const int vector = first_vector + i < a.vectors ? first_vector + i : a.vectors - 1;
    x[i] = reinterpret_cast<const uint4*>(static_cast<const X*>(a.x) + vector * a.x_row);
  }

  start_early();

  // this block's slice of k
  const int64_t packs = a.k / kPack<W>, split = blockIdx.z;
  const int begin = static_cast<int>(packs * split / a.splits), end = static_cast<int>(packs * (split + 1) / a.splits);
  float sum[Tile::rows][Tile::vectors] = {};
  slice_dot<W, X, typename Tile::Slice, Tile::threads>(sum, weights, x, begin + static_cast<int>(threadIdx.x), end);

  // lanes, then warps
  const int64_t row = first_row + threadIdx.x / Tile::vectors;
  const int vector = first_vector + threadIdx.x % Tile::vectors;
  const bool finishes = threadIdx.x < kSums && row < a.m && vector < a.vectors;
  const float ahead = finishes && a.partial == nullptr ? read_ahead<X>(a, vector, row) : 0.0f;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const float total = warp_reduce(sum[i / Tile::vectors][i % Tile::vectors]);
    if (lane == 0) shared[warp][i] = total;
  }
  __syncthreads();
  if (!finishes) return;
  float total = shared[0][threadIdx.x];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) total += shared[i][threadIdx.x];
  put_sum<X>(a, static_cast<int>(split), vector, row, total, ahead);
}

template <class W, class X, class Tile, class Args>
void launch_skinny_block(const Args& a, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(ceil_div(a.m, Tile::rows));
  const auto vectors = static_cast<unsigned>(ceil_div(a.vectors, Tile::vectors));
  launch<&skinny_block_kernel<W, X, Tile, Args>>(
      {.grid = {rows, vectors, static_cast<unsigned>(a.splits)}, .block = Tile::threads, .early = true}, stream, a);
  if (a.partial != nullptr) launch_skinny_sum<X>(a, stream);
}

// One vector, or two by one read of the weights, `halved` by half of the threads. `most`: vectors that a call may have.
template <class T, int most = 2, class Args>
void launch_few_vectors(const Args& a, bool halved, cudaStream_t stream) {
  const auto launch_tile = [&]<class Slice, int blocks>() {
    if (halved) return launch_skinny_block<T, T, SkinnyBlockTile<Slice, 128, 2 * blocks>>(a, stream);
    launch_skinny_block<T, T, SkinnyBlockTile<Slice, 256, blocks>>(a, stream);
  };
  if (most == 1 || a.vectors == 1) return launch_tile.template operator()<SliceTile<4, 1, 2>, 4>();
  if constexpr (most > 1) launch_tile.template operator()<SliceTile<4, 2, 2>, 2>();
}

}  // namespace
}  // namespace warpsmith
