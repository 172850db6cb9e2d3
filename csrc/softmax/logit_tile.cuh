// How rows are dealt out to threads that hold them in registers.
#pragma once

#include <cstdint>
#include <tuple>

#include "device/cluster_gather.h"
#include "device/vec.h"
#include "device/warp.h"
#include "host/launch.h"
#include "row/rows.h"

namespace warpsmith {

// threads of a block (at most) | threads that share a row, 0: the whole block |
// 128-bit packs of a row that each of them holds | blocks per multiprocessor that the registers must allow | whether a
// causal row's packs behind the diagonal are jumped over, or computed in straight code, for nothing, and not written |
// whether a block is cut to what the row needs, or else is whole: its packs then lie a number of bytes apart that the
// compiler knows, and their addresses take no instructions
template <int threads_, int lanes_, int packs_, int min_blocks_, bool jumps_ = true, bool cut_ = true>
struct LogitTile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr bool jumps = jumps_, cut = lanes == 0 && cut_;
  static constexpr int group = lanes > 0 ? lanes : kWarp;  // threads of one row that shuffles reach
  static constexpr int most_packs = (lanes > 0 ? lanes : threads) * packs;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
  static constexpr int cluster = 1;  // blocks that share a row
};

// The same of a row that all blocks of a cluster share, as if they were one. They take turns at its packs: those of a
// causal row come to the diagonal together.
template <int threads_, int packs_, int min_blocks_, int cluster_>
struct LogitClusterTile : LogitTile<threads_, 0, packs_, min_blocks_> {
  static constexpr int cluster = cluster_;
  static_assert(cluster <= kMostClusterBlocks, "what the blocks of a cluster can gather");
  static constexpr int most_packs = cluster * threads_ * packs_;
};

// A thread's place: its row, its number among those who share the row.
template <class Tile>
struct LogitPlace {
  int64_t row;
  int lane;

  __device__ __forceinline__ LogitPlace() {
    if constexpr (Tile::lanes > 0) {
      row = int64_t{blockIdx.x} * Tile::rows_per_block + threadIdx.x / Tile::lanes;
      lane = threadIdx.x % Tile::lanes;
    } else {
      row = blockIdx.x / Tile::cluster;
      lane = blockIdx.x % Tile::cluster * blockDim.x + threadIdx.x;
    }
  }

  __device__ __forceinline__ int lanes() const {
    if constexpr (Tile::cut) return Tile::cluster * blockDim.x;
    return Tile::lanes > 0 ? Tile::lanes : Tile::threads;
  }

  // Number of the thread's pack i in its row.
  __device__ __forceinline__ int pack(int i) const { return i * lanes() + lane; }

  // First column of the thread's pack i, and of everyone's.
  template <class T>
  __device__ __forceinline__ int col(int i) const {
    return pack(i) * kPack<T>;
  }
  template <class T>
  __device__ __forceinline__ int first_col(int i) const {
    return i * lanes() * kPack<T>;
  }
  // Whether nobody computes pack i, as it lies behind the live columns.
  template <class T>
  __device__ __forceinline__ bool jumps_over(int i, int live) const {
    return Tile::jumps && first_col<T>(i) >= live;
  }
};

// Calls body.template operator()<Tile>(config) for the first tile that holds a row of `packs`.
template <class... Tile, class Body>
void launch_smallest(int64_t rows, int64_t packs, std::tuple<Tile...>, Body&& body) {
  const auto visit = [&]<class Each>() {
    if (packs > Each::most_packs) return false;
    constexpr int kCluster = Each::cluster;
    const unsigned threads = Each::cut ? row_threads(packs, kCluster * Each::packs, Each::threads) : Each::threads;
    const unsigned grid = static_cast<unsigned>((rows + Each::rows_per_block - 1) / Each::rows_per_block * kCluster);
    body.template operator()<Each>(LaunchConfig{.grid = grid, .block = threads, .cluster = kCluster});
    return true;
  };
  static_cast<void>((visit.template operator()<Tile>() || ...));
}

}  // namespace warpsmith
