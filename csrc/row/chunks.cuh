// Long rows of several inputs and outputs, streamed in chunks through the shared memory of a thread-block cluster (sm_90).
//
// Clusters are persistent and walk over rows, a block having a slice of each. A row passes through a ring in chunks of one
// pack a thread; a chunk that is finished leaves its place to another at once, so that the same number of bytes is on its
// way at all times. The statistics of row k + 1, and of `lag` chunks of row k + 2, are gathered in between the chunks of
// row k that are finished: a block's warps have `lag` chunks of time to hand theirs on, and the exchange over the cluster
// has one or two to arrive. A thread copies what it will read itself, and one warp merges the block's statistics: no
// barrier stands in the way of the others.
//
// `Op` is passed to the kernel and has
//
//     int64_t rows;
//     struct Stats;                                   // floats
//     struct Total;
//     Stats combine<count>(const Stats* parts) const;  // by a warp, in every lane; a power of two, at most kWarp
//     Total total<count>(const Stats* parts) const;    // the same of all parts of the row
//     template <class Tile> struct Work;
//
// and Work, what a thread does,
//
//     static constexpr int kEarlyBytes;  // of a block's chunk, from its arrival until it is finished
//     static constexpr int kFirstBytes;  // from its arrival until it is gathered
//     static constexpr int kLateBytes;   // that only finishing needs
//     static constexpr int kShelfBytes;  // of a block, kept for all rows
//     static constexpr bool kResums;     // whether a total may have to be mended
//     Work(const Op&, int rank, char* shelf);
//     void fetch(int i, char* early, char* first, int64_t row);
//     void fetch_late(int i, char* late, int64_t row);
//     void gather(int i, char* early, char* first, int64_t row);
//     Stats stats() const;  // of the warp, once all packs are gathered, in lane 0
//     void finish(int i, char* early, char* late, int64_t row, const Total&);
//     void leave(int64_t cluster) const;  // after the last row
//
// each of which meets the packs of a row in turn: what Work derives from `row` for the first of them, it may keep.
//
// and, where kResums is set,
//
//     bool lost(const Total&) const;              // the same in the whole cluster
//     float resum(int i, char* early, const Total&) const;
//     void mend(Total&, float sum) const;         // sum: of all that resum() returned in the cluster
//
// CUDA C++ Programming Guide, "Thread Block Clusters", "Distributed Shared Memory" and "Asynchronous Data Copies".
#pragma once

#include "device/cluster.h"
#include "device/ptx/copy.h"
#include "host/min_max.h"
#include "host/occupancy.h"
#include "host/tiles.h"

namespace warpsmith {

struct ChunkTile {
  int threads;    // of a block
  int packs;      // of a row that one of them handles, a chunk each
  int depth;      // chunks on their way
  int lag;        // chunks of the row after next gathered before a row is finished
  int cluster;    // blocks that share a row
  int held;       // packs whose columns a thread holds in registers
  int shelf = 0;  // packs whose columns lie in shared memory; those of the rest are read again for every row

  constexpr int ahead() const { return packs + lag; }
  constexpr int slots() const { return ahead() + depth; }
  constexpr int64_t most_packs() const { return int64_t{cluster} * threads * packs; }
  // Stores that signal their arrival need a real cluster.
  constexpr bool works() const { return cluster > 1 && lag < packs && held + shelf <= packs; }
};

// Row k + 4 is not gathered before every block has read the total of row k.
inline constexpr int kChunkRows = 4;

template <class Stats, class Tile>
struct ChunkStorage {
  Stats parts[kChunkRows][Tile::shape.threads / kWarp];  // [row, warp]
  Stats slices[kChunkRows][Tile::shape.cluster];         // [row, block of the cluster]
  float resum_parts[Tile::shape.threads / kWarp], resum_slices[Tile::shape.cluster];
  // mbarriers
  uint64_t gathered[kChunkRows];   // the block's parts of the row are here
  uint64_t exchanged[kChunkRows];  // the cluster's slices are here
};

// What a thread has of a row.
template <int width, class Tile>
struct ChunkShare {
  int own, mine;  // packs of this block, none at the end of a short row, and of this thread
  int first;      // column of this thread's first
  __device__ __forceinline__ ChunkShare(int64_t cols, int rank) {
    const int packs = static_cast<int>(cols / width), slice = (packs + Tile::shape.cluster - 1) / Tile::shape.cluster;
    const int tid = threadIdx.x;
    own = max(min(packs - rank * slice, slice), 0);
    mine = own > tid ? (own - tid + Tile::shape.threads - 1) / Tile::shape.threads : 0;
    first = (rank * slice + tid) * width;
  }
  __device__ __forceinline__ bool inside(int i) const { return i < mine; }
  __device__ __forceinline__ int col(int i) const { return first + i * Tile::shape.threads * width; }

  // Where the thread's i-th pack of a row lies. `kept`, its first one, is found anew with the first of every row only.
  template <class T>
  __device__ __forceinline__ T* place(T* row, int i, T*& kept) const {
    if (i == 0) kept = row + first;
    return kept + i * Tile::shape.threads * width;
  }

  // Lanes of the warp that have an i-th pack.
  __device__ __forceinline__ int lanes(int i) const {
    return min(max(own - i * Tile::shape.threads - static_cast<int>(threadIdx.x) / kWarp * kWarp, 0), kWarp);
  }
  // Values of the warp.
  __device__ __forceinline__ int values() const {
    int packs = 0;
    for (int i = 0; i < Tile::shape.packs; ++i) packs += lanes(i);
    return packs * width;
  }
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Sum over the cluster that everyone waits for: for rare rows.
template <class Tile, class Stats>
__device__ __forceinline__ float resum_cluster(float value, ChunkStorage<Stats, Tile>& shared) {
  constexpr int kWarps = Tile::shape.threads / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  value = warp_reduce(value);
  if (lane == 0) shared.resum_parts[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_reduce(lane < kWarps ? shared.resum_parts[lane] : 0.0f);
    if (lane < Tile::shape.cluster) store_remote(&shared.resum_slices[cluster_rank()], lane, value);
  }
  cluster_sync();
  value = warp_reduce(lane < Tile::shape.cluster ? shared.resum_slices[lane] : 0.0f);
  cluster_sync();  // the next sum takes the same place
  return value;
}

#endif

template <class Op, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads, 1) chunk_kernel([[maybe_unused]] const Op op) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  static_assert(Tile::shape.works());
  using Work = typename Op::template Work<Tile>;
  using Stats = typename Op::Stats;
  using Total = typename Op::Total;
  constexpr int kCluster = Tile::shape.cluster, kPacks = Tile::shape.packs, kAhead = Tile::shape.ahead(),
                kSlots = Tile::shape.slots();
  constexpr int kDepth = Tile::shape.depth, kWarps = Tile::shape.threads / kWarp;
  extern __shared__ __align__(128) char ring[];  // early [slots], first [depth], late [depth], shelf
  __shared__ ChunkStorage<Stats, Tile> shared;

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, rank = cluster_rank();
  const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  const int rows = static_cast<int>((op.rows - cluster + clusters - 1) / clusters);  // of this one
  const auto is_row = [&](int k) { return static_cast<unsigned>(k) < static_cast<unsigned>(rows); };
  const auto row_of = [&](int k) { return int64_t{k} * clusters + cluster; };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kChunkRows; ++i) {
      ptx::mbarrier_init(&shared.gathered[i], kWarps);
      ptx::mbarrier_init(&shared.exchanged[i], 1);
    }
    ptx::fence_mbarrier_init();
  }
  cluster_sync();

  // By one warp: sends what the block has gathered of its k-th row to every block.
  const auto merge = [&](int k) {
    const int slot = k % kChunkRows;
    ptx::mbarrier_wait(&shared.gathered[slot], k / kChunkRows % 2);
    const Stats stats = op.template combine<kWarps>(shared.parts[slot]);
    share_in_cluster(shared.slices[slot], rank, lane, &shared.exchanged[slot], stats);
  };

  char* const firsts = ring + kSlots * Work::kEarlyBytes;
  char* const lates = firsts + kDepth * Work::kFirstBytes;
  Work work(op, rank, lates + kDepth * Work::kLateBytes);
  int early = 0;  // of the chunk that is finished
  [[maybe_unused]] int first = kAhead % kDepth * Work::kFirstBytes, late = 0;
  const auto advance = [](int& at, int bytes, int count) {
    at += bytes;
    at = at == bytes * count ? 0 : at;
  };
  Total total;
  constexpr int kWaits = Tile::shape.lag > 0 ? 1 : 0;  // a chunk, until the other warps have left their parts too
  constexpr int kBefore = (kSlots + kPacks - 1) / kPacks;
  for (int k = -kBefore; k < rows; ++k) {
#pragma unroll
    for (int c = 0; c < kPacks; ++c) {
      // The chunk `by` places behind chunk c of row k is chunk turn() of row k + later().
      constexpr auto turn = [](int c, int by) { return (c + by) % kPacks; };
      constexpr auto later = [](int c, int by) { return (c + by) / kPacks; };
      ptx::cp_async_wait<kDepth - 1>();
      if (const int g = k + later(c, kAhead); is_row(g)) {
        const int i = turn(c, kAhead);
        const int past = early - (kSlots - kAhead) * Work::kEarlyBytes;  // the same slot, if not before the ring
        work.gather(i, ring + (past < 0 ? past + kSlots * Work::kEarlyBytes : past), firsts + first, row_of(g));
        if (i == kPacks - 1) {
          const Stats stats = work.stats();
          if (lane == 0) {
            shared.parts[g % kChunkRows][warp] = stats;
            ptx::mbarrier_arrive(&shared.gathered[g % kChunkRows]);
          }
        }
      }
      if (warp == 0 && turn(c, kAhead - kWaits) == kPacks - 1) {
        if (const int g = k + later(c, kAhead - kWaits); is_row(g)) merge(g);
      }
      if (k >= 0) {
        if (c == 0) {
          ptx::mbarrier_wait_cluster(&shared.exchanged[k % kChunkRows], k / kChunkRows % 2);
          total = op.template total<kCluster>(shared.slices[k % kChunkRows]);
          if constexpr (Work::kResums) {
            if (work.lost(total)) {
              float sum = 0.0f;
              int at = early;
#pragma unroll 1
              for (int i = 0; i < kPacks; ++i) {
                sum += work.resum(i, ring + at, total);
                advance(at, Work::kEarlyBytes, kSlots);
              }
              work.mend(total, resum_cluster(sum, shared));
            }
          }
        }
        work.finish(c, ring + early, lates + late, row_of(k), total);
      }
      if (const int f = k + later(c, kSlots); is_row(f)) {
        work.fetch(turn(c, kSlots), ring + early, firsts + first, row_of(f));
      }
      if constexpr (Work::kLateBytes > 0) {
        if (const int f = k + later(c, kDepth); is_row(f)) work.fetch_late(turn(c, kDepth), lates + late, row_of(f));
      }
      ptx::cp_async_commit();
      advance(early, Work::kEarlyBytes, kSlots);
      if constexpr (Work::kFirstBytes > 0) advance(first, Work::kFirstBytes, kDepth);
      if constexpr (Work::kLateBytes > 0) advance(late, Work::kLateBytes, kDepth);
    }
  }
  work.leave(cluster);
  cluster_sync();  // nobody ends while others may still send to it
#endif
}

// Returns how many clusters there are.
template <class Tile, class Op>
int64_t launch_chunk_tile(const Op& op, int64_t most_clusters, cudaStream_t stream) {
  using Work = typename Op::template Work<Tile>;
  constexpr int kSmem = Tile::shape.slots() * Work::kEarlyBytes +
                        Tile::shape.depth * (Work::kFirstBytes + Work::kLateBytes) + Work::kShelfBytes;
  static_assert(kSmem + sizeof(ChunkStorage<typename Op::Stats, Tile>) + 128 <= 227 * 1024,
                "more than a block may have");
  constexpr auto kernel = &chunk_kernel<Op, Tile>;
  LaunchConfig config{.block = Tile::shape.threads, .dynamic_smem = kSmem, .cluster = Tile::shape.cluster};
  const int64_t clusters = min_of(op.rows, most_clusters, static_cast<int64_t>(resident_clusters<kernel>(config)));
  config.grid = static_cast<unsigned>(clusters * Tile::shape.cluster);
  launch<kernel>(config, stream, op);
  return clusters;
}

// In the first tile that holds a row of so many packs.
template <class Op, class Tiles>
int64_t launch_chunks(const Op& op, int64_t packs, int64_t most_clusters, cudaStream_t stream, Tiles tiles) {
  int64_t clusters = 0;
  with_first_tile(tiles, packs, [&]<class Tile>() { clusters = launch_chunk_tile<Tile>(op, most_clusters, stream); });
  return clusters;
}

}  // namespace warpsmith
