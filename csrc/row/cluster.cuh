// Long rows, streamed through the shared memory of a thread-block cluster: the kernel behind the rungs `cluster` of the
// row-wise operators (sm_90).
//
// Clusters are persistent: each walks over rows, a block keeping the weights of its slice in registers. One warp of each
// block has rows copied in bulk into a ring, several rows ahead, and merges the statistics that the others leave to it:
// first those of the block and then, exchanged, of the cluster. The others gather the statistics of row k + 1 before they
// finish row k, whose total is known meanwhile: nobody waits for the exchange, and nobody merges what one warp can merge
// for all.
//
// `Row` is what row/registers.cuh describes. CUDA C++ Programming Guide, "Thread Block Clusters", "Distributed Shared
// Memory" and "Asynchronous Data Copies".
#pragma once

#include "device/cluster.h"
#include "device/tma_ring.h"
#include "host/occupancy.h"
#include "row/registers.cuh"

namespace warpsmith {

struct ClusterTile {
  int threads;     // of a block that compute, at most
  int packs;       // 128-bit packs of each input's row that one of them handles
  int stages;      // rows in the ring
  int min_blocks;  // per multiprocessor
  int cluster;     // blocks that share a row

  constexpr int64_t most_packs() const { return int64_t{cluster} * threads * packs; }
};

// Nobody hands anything on about row k + 2 before the total of row k is known to it, and nobody knows that before all
// that was handed on about row k has been read.
inline constexpr int kStatsInFlight = 2;

template <class Row, class Tile>
struct ClusterStorage {
  typename Row::Stats parts[kStatsInFlight][Tile::shape.threads / kWarp];  // [row, warp]
  typename Row::Stats slices[kStatsInFlight][Tile::shape.cluster];         // [row, block of the cluster]
  typename Row::Stats merged[kStatsInFlight];                              // [row]
  // mbarriers
  uint64_t gathered[kStatsInFlight];   // the block's parts of the row are here
  uint64_t exchanged[kStatsInFlight];  // the cluster's slices are here
  uint64_t known[kStatsInFlight];      // what they add up to is
  TmaRing<Tile::shape.stages> slice;   // empty: every thread has finished with it, and with the row's `merged`
};

// A thread's packs of a row in the ring; [pack][input].
template <class Row>
struct RingRow {
  const uint4* first;
  int slice, threads, valid;

  struct Inputs {
    const uint4* first;
    int slice;
    bool valid;
    __device__ __forceinline__ uint4 operator[](int k) const { return valid ? first[k * slice] : Row::padding(); }
  };
  __device__ __forceinline__ Inputs operator[](int i) const { return {first + i * threads, slice, i < valid}; }
};

// Whether gather() takes a RingRow: for rows beside whose weights no registers are left to hold packs.
template <class Row, int packs>
concept GathersFromRing = requires { requires Row::template kGathersFromRing<packs>; };

template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads + kWarp, Tile::shape.min_blocks)
    row_cluster_kernel([[maybe_unused]] const Row row) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  using T = typename Row::Value;
  using Stats = typename Row::Stats;
  constexpr int kPacks = Tile::shape.packs, kStages = Tile::shape.stages, kCluster = Tile::shape.cluster,
                kWidth = kPack<T>;
  constexpr bool kAhead = kStages > 1;  // a ring of one row leaves no room for the next
  constexpr int kInputs = Row::kInputs;
  extern __shared__ __align__(128) uint4 ring[];  // [stages, inputs, slice]; bulk copies want whole lines
  __shared__ ClusterStorage<Row, Tile> shared;

  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const int threads = blockDim.x - kWarp, warps = threads / kWarp;
  const int rank = cluster_rank();
  const int packs = static_cast<int>(row.cols / kWidth);
  const int slice = (packs + kCluster - 1) / kCluster;
  const int own = max(min(packs - rank * slice, slice), 0);  // packs of this block
  const int first_col = rank * slice * kWidth;
  const int64_t first_row = blockIdx.x / kCluster, step = gridDim.x / kCluster;
  const int rows = static_cast<int>((row.rows - first_row + step - 1) / step);  // of this cluster

  const auto at = [](int k) { return RingSlot<kStages>{k % kStages, k / kStages % 2}; };
  if (tid == 0) {
    shared.slice.init(1, threads);
    for (int i = 0; i < kStatsInFlight; ++i) {
      ptx::mbarrier_init(&shared.gathered[i], warps);
      ptx::mbarrier_init(&shared.exchanged[i], 1);
      ptx::mbarrier_init(&shared.known[i], kWarp);
    }
    ptx::fence_mbarrier_init();
  }
  cluster_sync();  // every block's barriers exist before anyone signals them

  if (warp == warps) {
    const uint64_t policy = row.load_policy();
    const auto copy = [&](int k) {
      const int stage = k % kStages;
      if (lane != 0) return;
      shared.slice.expect(at(k), kInputs * own * 16);
      if (own == 0) return;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        ptx::bulk_load(&ring[(stage * kInputs + i) * slice], row.input(i, first_row + k * step) + first_col, own * 16,
                       &shared.slice.full[stage], policy);
      }
    };
    const auto merge = [&](int k) {
      const int slot = k % kStatsInFlight, parity = k / kStatsInFlight % 2;
      ptx::mbarrier_wait(&shared.gathered[slot], parity);
      const Stats stats = row.combine(shared.parts[slot], warps);
      share_in_cluster(shared.slices[slot], rank, lane, &shared.exchanged[slot], stats);
      ptx::mbarrier_wait_cluster(&shared.exchanged[slot], parity);
      const Stats merged = row.combine(shared.slices[slot], kCluster);
      __syncwarp();  // every lane has read slices, which other blocks send again once they have the next row's of this one
      if (lane == 0) shared.merged[slot] = merged;
      ptx::mbarrier_arrive(&shared.known[slot]);
      if (lane == 0 && rank == 0) row.keep(first_row + k * step, row.total(merged));
    };

    for (int k = 0; k < min(rows, kStages); ++k) copy(k);
    if (kAhead && rows > 0) merge(0);
    for (int k = 0; k < rows; ++k) {
      if (!kAhead) merge(k);
      if (kAhead && k + 1 < rows) merge(k + 1);
      shared.slice.wait_empty(at(k));
      if (k + kStages < rows) copy(k + kStages);
    }
  } else {
    constexpr bool kHeld = Row::template kHoldsColumns<kPacks>;
    typename Row::Columns held[kHeld ? kPacks : 1];
    int valid = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int pack = i * threads + tid;
      if (pack < own) {
        ++valid;
        if constexpr (kHeld) held[i].load_from(row, first_col + pack * kWidth);  // of the usual dtype
      }
    }
    const auto row_of = [&](int stage) {
      return RingRow<Row>{ring + stage * kInputs * slice + tid, slice, threads, valid};
    };
    const auto read = [&](const RingRow<Row>& from, int i, uint4(&x)[kInputs]) {
#pragma unroll
      for (int k = 0; k < kInputs; ++k) x[k] = from[i][k];
    };

    const auto gather = [&](int k) {
      const int stage = k % kStages, slot = k % kStatsInFlight;
      shared.slice.wait(at(k));
      const RingRow<Row> from = row_of(stage);
      Stats stats;
      if constexpr (GathersFromRing<Row, kPacks>) {
        stats = row.template gather<kWarp, kPacks>(from, valid);
      } else {
        uint4 x[kPacks][kInputs];
#pragma unroll
        for (int i = 0; i < kPacks; ++i) read(from, i, x[i]);
        stats = row.template gather<kWarp, kPacks>(x, valid);
      }
      if (lane == 0) {
        shared.parts[slot][warp] = stats;
        ptx::mbarrier_arrive(&shared.gathered[slot]);
      }
    };

    const auto finish = [&](int k) {
      const int stage = k % kStages, slot = k % kStatsInFlight;
      ptx::mbarrier_wait(&shared.known[slot], k / kStatsInFlight % 2);
      const typename Row::Total total = row.total(shared.merged[slot]);
      row.with_columns([&]<class Columns>() {
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
          if (i < valid) {
            const int col = first_col + (i * threads + tid) * kWidth;
            uint4 x[kInputs];
            read(row_of(stage), i, x);
            Columns columns;
            if constexpr (kHeld && std::is_same_v<Columns, typename Row::Columns>) {
              held[i].keep(detail::unknown_zero(row));
              columns = held[i];
            } else {
              columns.load_from(row, col);
            }
            row.finish(first_row + k * step, col, x, total, columns);
          }
        }
      });
      shared.slice.release(at(k));
    };

    if (kAhead && rows > 0) gather(0);
    for (int k = 0; k < rows; ++k) {
      if constexpr (kAhead) {
        if (k + 1 < rows) gather(k + 1);
      } else {
        gather(k);
      }
      finish(k);
    }
  }
  cluster_sync();  // nobody leaves while others may still send statistics here
#endif
}

template <class Row, class Tile>
void launch_cluster_tile(const Row& row, cudaStream_t stream) {
  const int64_t packs = row.cols / kPack<typename Row::Value>;
  const int64_t slice = (packs + Tile::shape.cluster - 1) / Tile::shape.cluster;
  LaunchConfig config;
  config.block = dim3(row_threads(slice, Tile::shape.packs, Tile::shape.threads) + kWarp);
  config.dynamic_smem = Tile::shape.stages * Row::kInputs * Tile::shape.packs * Tile::shape.threads * 16;
  config.cluster = Tile::shape.cluster;
  const int64_t clusters = std::min<int64_t>(row.rows, resident_clusters<&row_cluster_kernel<Row, Tile>>(config));
  config.grid = dim3(static_cast<unsigned>(clusters * Tile::shape.cluster));
  launch<&row_cluster_kernel<Row, Tile>>(config, stream, row);
}

// Through the first tile that holds the row.
template <class Row, class Tiles>
void launch_cluster(const Row& row, cudaStream_t stream, Tiles tiles) {
  with_first_tile(tiles, row.cols / kPack<typename Row::Value>,
                  [&]<class Tile>() { launch_cluster_tile<Row, Tile>(row, stream); });
}

// One input: up to 1 MiB. Four packs a thread leave room for more rows ahead; measured on an H200, that is worth spreading
// a row over more blocks.
struct OneInputClusterTiles {
  static constexpr ClusterTile tiles[] = {{.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 8},
                                          {.threads = 512, .packs = 4, .stages = 5, .min_blocks = 1, .cluster = 16},
                                          {.threads = 512, .packs = 8, .stages = 3, .min_blocks = 1, .cluster = 16}};
};
using ClusterTiles = TilesOf<OneInputClusterTiles>;
inline constexpr int64_t kMostClusterBytes = 16 * kMostRowPacks<ClusterTiles>;
static_assert(kMostClusterBytes == 1024 * 1024);

}  // namespace warpsmith
