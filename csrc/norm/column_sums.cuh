// What a thread of row/chunks.cuh has added up over the rows of its cluster, for each of its columns.
#pragma once

#include "row/chunks.cuh"

namespace warpsmith {

// As a type: threads, packs, depth, lag, cluster, held, shelf.
template <int threads_, int packs_, int depth_, int lag_, int cluster_, int held_ = packs_, int shelf_ = 0>
struct PositionalChunkTile {
  static constexpr int threads = threads_, packs = packs_, cluster = cluster_, held = held_, shelf = shelf_;
  static constexpr ChunkTile shape{threads_, packs_, depth_, lag_, cluster_, held_, shelf_};
  static constexpr int64_t most_packs = shape.most_packs();
};

// partials: [clusters, cols] or null. line: of the cluster. sum(i, j): of value j of the thread's i-th pack.
template <int width, class Tile, class Sum>
__device__ __forceinline__ void write_column_sums(float* partials, int64_t line, int64_t cols,
                                                  const ChunkShare<width, Tile>& at, Sum sum) {
  if (partials == nullptr) return;
  float* const partial = partials + line * cols;
#pragma unroll
  for (int i = 0; i < Tile::shape.packs; ++i) {
    if (!at.inside(i)) continue;
#pragma unroll
    for (int j = 0; j < width; j += 4) {
      *reinterpret_cast<float4*>(partial + at.col(i) + j) = {sum(i, j), sum(i, j + 1), sum(i, j + 2), sum(i, j + 3)};
    }
  }
}

}  // namespace warpsmith
