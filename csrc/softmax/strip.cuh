// Along a dimension that is not the last, with columns read once: a block holds a strip of neighbouring columns in
// shared memory, a cluster of blocks the strip of longer columns.
//
// A lane owns a pack of neighbours of inner; the sharers of a block take turns along cols, and read back from shared
// memory only what they brought themselves.
#pragma once

#include "device/cluster.h"
#include "device/copy_async.h"
#include "softmax/columns.cuh"
#include "softmax/strip.h"

namespace warpsmith {

// Blocks for a column, at most.
struct WideStrip : ColumnTile<16, 16> {
  static constexpr int most_blocks = 1;
};

struct NarrowStrip : ColumnTile<64, 4> {  // 64 contiguous bytes of inner
  static constexpr int most_blocks = kMostStripCluster;
};

// Calls body.template operator()<Tile>() for a column of that length.
template <class Body>
void visit_strip_tile(int64_t cols, int inputs, Body&& body) {
  constexpr int64_t kWideRows = kStripRows * NarrowStrip::lanes / WideStrip::lanes;
  if (cols * inputs <= kWideRows) {
    body.template operator()<WideStrip>();
  } else {
    body.template operator()<NarrowStrip>();
  }
}

inline constexpr int kStripBlocks = 3;  // per multiprocessor, that the registers must allow

// The shares of [0, cols) that the blocks of a cluster hold.
struct StripShare {
  int64_t begin, end;

  __device__ StripShare(int64_t cols, int rank, int cluster) {
    const int64_t each = (cols + cluster - 1) / cluster;
    begin = min(rank * each, cols);
    end = min(begin + each, cols);
  }
};

template <class Tile>
struct StripParts {
  static constexpr int groups = Tile::threads / (Tile::lanes > kWarp ? Tile::lanes : kWarp);  // left by warps
};

template <class Tile, int width, class Part>
struct StripStorage {
  Part part[StripParts<Tile>::groups][Tile::lanes * width];
  Part block[Tile::most_blocks][Tile::lanes * width];
};

// --- packs -----------------------------------------------------------------------------------------------------------

// Starts bringing a pack to shared memory; zeros in place of what lies beyond `count` values.
template <class Aligned, class T>
__device__ __forceinline__ void fetch_pack(Pack<T>* slot, const T* from, int count, uint64_t policy) {
  if constexpr (Aligned::value) {
    copy_async(slot, from, policy);
  } else {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) pack[i] = i < count ? from[i] : T{};
    *slot = pack;
  }
}

// As elsewhere, inputs that alone would fill L2 stay there longest, so that the results leave at once.
__device__ __forceinline__ uint64_t strip_policy(bool beyond_l2) {
  return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal();
}

template <class Aligned, class T>
__device__ __forceinline__ void write_pack(T* to, const Pack<T>& pack, int count) {
  if constexpr (Aligned::value) {
    store<Cache::streaming>(to, pack);
  } else {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < count) to[i] = pack[i];
    }
  }
}

// --- from the parts of a column to the whole -------------------------------------------------------------------------

template <class Tile, class Reduce>
__device__ __forceinline__ float reduce_sharers(float value, Reduce reduce) {
#pragma unroll
  for (int distance = Tile::lanes; distance < kWarp; distance *= 2) {
    value = reduce(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Over the sharers within a warp; each of them gets the result.
template <class T, class Tile>
__device__ __forceinline__ MaxSum join_within_warp(const MaxSum& own) {
  const float max = reduce_sharers<Tile>(own.max, Largest{});
  return {max, reduce_sharers<Tile>(own.sum * exponential<T>(own.max - max), Sum{})};
}

template <class T, class Tile>
__device__ __forceinline__ float join_within_warp(float own) {
  return reduce_sharers<Tile>(own, Sum{});
}

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Joins the parts of all sharers of all blocks; each of them gets the whole. In a cluster, cluster_arrive_relaxed() comes
// first: no block may send before every block runs.
template <class T, class Join, class Tile, int width>
__device__ __forceinline__ void join_strip(typename Join::Part (&own)[width],
                                           StripStorage<Tile, width, typename Join::Part>& shared, int cluster) {
  using Part = typename Join::Part;
  constexpr int kGroups = StripParts<Tile>::groups, kColumns = Tile::lanes * width;
  const int lane = threadIdx.x % Tile::lanes, group = threadIdx.x / (Tile::threads / kGroups);
#pragma unroll
  for (int j = 0; j < width; ++j) {
    own[j] = join_within_warp<T, Tile>(own[j]);
    if (Tile::lanes >= kWarp || threadIdx.x % kWarp < Tile::lanes) shared.part[group][j * Tile::lanes + lane] = own[j];
  }
  __syncthreads();
  if (cluster > 1) cluster_wait();
  for (int slot = threadIdx.x; slot < kColumns; slot += Tile::threads) {
    const Part whole = Join::join(kGroups, [&](int64_t i) { return shared.part[i][slot]; });
    if (cluster == 1) {
      shared.block[0][slot] = whole;
      continue;
    }
    float* to = reinterpret_cast<float*>(&shared.block[cluster_rank()][slot]);
    for (int rank = 0; rank < cluster; ++rank) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(Part) / sizeof(float)); ++i) {
        store_remote(to + i, rank, reinterpret_cast<const float*>(&whole)[i]);
      }
    }
  }
  if (cluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < width; ++j) {
    own[j] = Join::join(cluster, [&](int64_t i) { return shared.block[i][j * Tile::lanes + lane]; });
  }
}

#endif

}  // namespace warpsmith
