// Mean and variance of groups too large for one block: the moments of pieces, merged by a second kernel in a fixed
// order. Both layouts, forward and backward.
#pragma once

#include "device/start_early.h"
#include "norm/columns.cuh"
#include "norm/group_statistics.h"

namespace warpsmith {

// The workspace.
struct GroupStatistics {
  Moments* pieces;     // [rows, pieces]
  Normaliser* groups;  // [rows]

  GroupStatistics(float* workspace, const GroupShape& s, const Pieces& p)
      : pieces(reinterpret_cast<Moments*>(workspace)),
        groups(reinterpret_cast<Normaliser*>(workspace + 3 * s.rows() * p.count)) {}
};

inline constexpr int kPieceThreads = 256;

// Contiguous: block i takes piece i % count of group i / count.
template <class T>
__global__ void __launch_bounds__(kPieceThreads)
    group_norm_moments_kernel(Moments* to, const T* x, int64_t packs, const Pieces pieces) {
  start_early();
  constexpr int kWidth = kPack<T>;
  __shared__ Moments partial[kWarp];
  const int64_t row = blockIdx.x / pieces.count, first = (blockIdx.x - row * pieces.count) * pieces.length;
  const int64_t end = min(first + pieces.length, packs);
  const T* gX = x + row * packs * kWidth;  // [packs * kWidth]
  Moments moments{};
#pragma unroll 4
  for (int64_t pack = first + threadIdx.x; pack < end; pack += kPieceThreads) {
    Pack<T> raw;
    float values[kWidth];
    load<Cache::streaming>(raw, gX + pack * kWidth);
    to_float(values, raw);
    moments = merge(moments, moments_of(values));
  }
  moments = block_merge(moments, partial);
  if (threadIdx.x == 0) to[blockIdx.x] = moments;
}

// Channels last: block (i, tile) takes slab i % count of sample i / count.
template <class T>
__global__ void __launch_bounds__(kTileThreads, 4)
    group_norm_nhwc_moments_kernel(Moments* to, const T* x, const ColumnTiling tiling, const Pieces slabs) {
  start_early();
  constexpr int kWidth = kPack<T>;
  __shared__ alignas(16) float2 shared[kTileThreads * kWidth];
  const int tile = blockIdx.y;
  const Column column(tiling, tile);
  const int64_t sample = blockIdx.x / slabs.count, slab = blockIdx.x - sample * slabs.count;
  const int positions = static_cast<int>(min(slabs.length, tiling.spatial - slab * slabs.length));
  const int c = static_cast<int>(tiling.c);
  const T* gX = x + (sample * tiling.spatial + slab * slabs.length) * tiling.c +
                (int64_t{tile} * tiling.columns + column.at) * kWidth;  // [positions, c], at the thread's column
  PackMoments<kWidth> moments;
  if (column.active && column.lane < positions) {
    const auto load_pack = [&](Pack<T>& pack, int offset) { load<Cache::streaming>(pack, gX + offset); };
    Pack<T> first;
    load_pack(first, column.lane * c);
    moments.start(first);
    walk_column<Pack<T>, 4>(column, positions, c, load_pack, [&](const Pack<T>& pack, int) { moments.add(pack); });
  }
  const int64_t group = sample * tiling.groups + int64_t{tile} * tiling.columns * kWidth / tiling.group_channels;
  merge_groups(moments, shared, column, positions, tiling, [&](int i, int thread, int, const Moments& merged) {
    if (thread == 0) to[(group + i) * slabs.count + slab] = merged;
  });
}

// The second kernel. See merge_pieces.cuh.
void merge_pieces(const GroupStatistics& to, const GroupShape& s, const Pieces& pieces, float eps, cudaStream_t stream);

// Statistics of a contiguous x.
template <class T>
GroupStatistics launch_statistics(const T* x, const GroupShape& s, const Pieces& pieces, float eps, float* workspace,
                                  cudaStream_t stream) {
  const GroupStatistics statistics(workspace, s, pieces);
  const auto blocks = static_cast<unsigned>(s.rows() * pieces.count);
  const LaunchConfig config{.grid = blocks, .block = kPieceThreads, .early = true};
  launch<&group_norm_moments_kernel<T>>(config, stream, statistics.pieces, x, s.row_size() / kPack<T>, pieces);
  merge_pieces(statistics, s, pieces, eps, stream);
  return statistics;
}

// Statistics of a channels-last x.
template <class T>
GroupStatistics launch_statistics(const T* x, const GroupShape& s, const ColumnTiling& tiling, const Pieces& slabs,
                                  float eps, float* workspace, cudaStream_t stream) {
  const GroupStatistics statistics(workspace, s, slabs);
  const dim3 grid(static_cast<unsigned>(s.n * slabs.count), static_cast<unsigned>(tiling.tiles));
  const LaunchConfig config{.grid = grid, .block = tiling.threads(), .early = true};
  launch<&group_norm_nhwc_moments_kernel<T>>(config, stream, statistics.pieces, x, tiling, slabs);
  merge_pieces(statistics, s, slabs, eps, stream);
  return statistics;
}

}  // namespace warpsmith
