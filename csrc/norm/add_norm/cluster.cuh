// The kernel behind `cluster`: clusters of blocks walk over rows, each block holding its slice of one. As soon as a slice
// has left the ring for the registers, the same slice of the cluster's next row is on its way, so that memory stays busy
// while the row's sums travel and its results are written.
#pragma once

#include <tuple>

#include "device/cluster_sums.h"
#include "device/copy_async.h"
#include "norm/add_norm/row.cuh"
#include "row/persistent.h"

namespace warpsmith {

// threads of a block (at most) | packs of a row that a thread holds | blocks per multiprocessor |
// blocks that share a row | every thread of every block holds all of its packs
template <int threads_, int packs_, int min_blocks_, int cluster_, bool exact_ = false>
struct AddNormClusterTile {
  static constexpr int threads = threads_, packs = packs_, min_blocks = min_blocks_, cluster = cluster_;
  static constexpr bool exact = exact_;
  static constexpr int64_t most_packs = int64_t{cluster} * threads * packs;  // of a row
  using Exact = AddNormClusterTile<threads_, packs_, min_blocks_, cluster_, true>;
};

template <class Rows, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    add_norm_cluster_kernel([[maybe_unused]] const Rows v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  using T = typename Rows::T;
  using R = typename Rows::R;
  constexpr int kCluster = Tile::cluster, kPacks = Tile::packs, kWidth = Rows::kWidth;
  using XPack = Vec<T, kWidth>;
  using RPack = Vec<R, kWidth>;
  extern __shared__ uint4 ring[];
  __shared__ ClusterSums<Tile::threads, kCluster> sums;
  cluster_sums_prepare(sums);
  cluster_arrive_relaxed();

  const int tid = threadIdx.x, threads = Tile::exact ? Tile::threads : blockDim.x;
  RPack* sResidual = reinterpret_cast<RPack*>(ring);                   // [kPacks, threads]
  XPack* sX = reinterpret_cast<XPack*>(sResidual + kPacks * threads);  // [kPacks, threads]
  const int rank = cluster_rank();
  const int packs = static_cast<int>(v.cols / kWidth);
  const int slice = Tile::exact ? Tile::threads * kPacks : (packs + kCluster - 1) / kCluster;
  const int own = min(packs - rank * slice, slice);  // packs of this block, none at the end of a short row
  const int64_t first = int64_t{rank} * slice * kWidth, step = gridDim.x / kCluster;
  const auto inside = [&](int i) { return Tile::exact || i * threads + tid < own; };
  const auto col = [&](int i) { return first + (i * threads + tid) * kWidth; };

  // A thread copies what it will read itself, so that no barrier stands between the two.
  const uint64_t policy = v.load_policy();
  const auto fetch = [&](int i, int64_t row) {
    const int slot = i * threads + tid;
    copy_async(&sX[slot], v.x_row(row) + col(i), policy);
    if (v.residual != nullptr) copy_async(&sResidual[slot], v.residual_row(row) + col(i), policy);
  };

  int64_t row = blockIdx.x / kCluster;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (inside(i)) fetch(i, row);
  }
  ptx::cp_async_commit();
  cluster_wait();  // every block expects what is sent from now on

  for (int turn = 0; row < v.rows; row += step) {
    // add
    ptx::cp_async_wait<0>();
    RPack h[kPacks];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      h[i] = {};
      if (inside(i)) {
        const int slot = i * threads + tid;
        if (v.residual != nullptr) h[i] = sResidual[slot];
        h[i] = v.add(sX[slot], h[i], row, col(i));
        if (v.h != nullptr) store<Cache::streaming>(v.h_row(row) + col(i), h[i]);
        if (row + step < v.rows) fetch(i, row + step);
        sum = first_sum<Rows>(sum, h[i]);
      }
      keep_packed(h[i]);
    }
    ptx::cp_async_commit();
    sum = cluster_sum(sum, sums, turn++);

    // sum
    RowStatistics statistics{};
    if constexpr (Rows::kLayer) {
      statistics.mean = sum * v.inverse_count;
      sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (inside(i)) sum = second_sum(sum, h[i], statistics.mean);
        keep_packed(h[i]);
      }
      sum = cluster_sum(sum, sums, turn++);
    }
    statistics.rstd = reciprocal_rms(sum, v.inverse_count, v.eps);

    // normalise
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (inside(i)) store<Cache::streaming>(v.y_row(row) + col(i), normalise(v, h[i], statistics, col(i)));
    }
  }
#endif
}

// The first that holds the row is taken. Fewer of them serve the rarer dtypes.
using AddNormClusterTiles =
    std::tuple<AddNormClusterTile<512, 4, 2, 2>, AddNormClusterTile<512, 4, 2, 4>, AddNormClusterTile<512, 4, 2, 8>,
               AddNormClusterTile<512, 4, 2, 16>, AddNormClusterTile<1024, 4, 1, 16>>;
using AddNormFewClusterTiles =
    std::tuple<AddNormClusterTile<512, 4, 2, 2>, AddNormClusterTile<512, 4, 2, 8>, AddNormClusterTile<1024, 4, 1, 16>>;

template <class Tile, class Rows>
void launch_cluster_kernel(const Rows& rows, unsigned threads, cudaStream_t stream) {
  constexpr auto kernel = &add_norm_cluster_kernel<Rows, Tile>;
  constexpr int kPackBytes = Rows::kWidth * static_cast<int>(sizeof(typename Rows::T) + sizeof(typename Rows::R));
  LaunchConfig config{
      .block = threads, .dynamic_smem = static_cast<int>(threads) * Tile::packs * kPackBytes, .cluster = Tile::cluster};
  const int64_t clusters = std::min<int64_t>(rows.rows, resident_clusters<kernel>(config));
  config.grid = static_cast<unsigned>(clusters * Tile::cluster);
  launch<kernel>(config, stream, rows);
}

template <class Tile, class Rows>
void launch_cluster_tile(const Rows& rows, cudaStream_t stream) {
  const int64_t packs = rows.cols / Rows::kWidth;
  if constexpr (Rows::kCommon) {
    if (packs == Tile::most_packs) {
      return launch_cluster_kernel<typename Tile::Exact>(rows, Tile::threads, stream);
    }
  }
  const int64_t slice = (packs + Tile::cluster - 1) / Tile::cluster;
  launch_cluster_kernel<Tile>(rows, row_threads(slice, Tile::packs, Tile::threads), stream);
}

template <class Rows, class... Tile>
void launch_cluster_smallest(const Rows& rows, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && rows.cols / Rows::kWidth <= Tile::most_packs && (launch_cluster_tile<Tile>(rows, stream), done = true)),
   ...);
}

template <class Rows>
void launch_cluster(const Rows& rows, cudaStream_t stream) {
  using Tiles = std::conditional_t<Rows::kCommon, AddNormClusterTiles, AddNormFewClusterTiles>;
  launch_cluster_smallest(rows, stream, Tiles{});
}

}  // namespace warpsmith
