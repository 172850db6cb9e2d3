// Rows without weights, streamed through the shared memory of a block or of a cluster, wherever in memory they begin
// (sm_90). A vocabulary of 50257 leaves only every eighth row of bf16 values aligned.
//
// As in row/cluster.cuh blocks are persistent and keep a ring of rows, but a row passes through it in chunks, each of
// which makes room for another as soon as it is finished, and three kinds of warps share the work: one has chunks copied
// in bulk, one exchanges the statistics, the others gather row k + 1 while row k is finished.
//
// Copies in bulk go from 16-byte border to 16-byte border. A chunk lies in the ring as it does in memory, and the few
// values that the row has outside of its borders join it one by one. Statistics are gathered from packs that start at
// the row's own beginning, each put together from the two that it straddles: a row has the same bits wherever it lies.
// Results are written in packs between the borders of the output.
//
// `Row` is what row/registers.cuh describes, with empty `Columns` and
//
//     Value* output(int64_t row) const;
//     void finish_one(int64_t row, int col, const Value (&x)[kInputs], const Total&) const;
//
// and, where a thread does better to keep statistics of its own until the row ends, instead of gather()
//
//     Stats include(const Stats& seen, const uint4 (&x)[packs][kInputs]) const;  // from Stats::empty() on
//     Stats reduce(const Stats& own) const;                                      // over a warp
//
// PTX ISA, "cp.async.bulk" and "mbarrier"; CUDA C++ Programming Guide, "Distributed Shared Memory".
#pragma once

#include "device/cluster.h"
#include "device/tma_ring.h"
#include "host/occupancy.h"
#include "host/tiles.h"
#include "row/rows.h"
#include "row/straddle.h"

namespace warpsmith {

struct StreamTile {
  int threads;      // of a block that compute, at most
  int packs;        // 128-bit packs of each input's row that one of them handles
  int chunk_packs;  // of these, the packs of a chunk
  int slots;        // chunks in the ring
  int min_blocks;   // per multiprocessor
  int cluster;      // blocks that share a row
  bool anywhere;    // rows may begin anywhere, or else at 16-byte borders, with a whole number of packs

  constexpr int chunks() const { return packs / chunk_packs; }  // of a row in a block
  constexpr int64_t most_packs() const { return int64_t{cluster} * threads * packs; }
  // A row, one chunk of the next, and one on its way.
  constexpr bool has_room() const { return packs % chunk_packs == 0 && slots > chunks() + 1; }
  // Packs from the start of a chunk in the ring to the next. Output borders lie up to a pack behind the chunk's own, and
  // the chunk up to a pack behind those of the input: two packs more, in whole lines, as bulk copies want them.
  constexpr int image_packs(int block_threads) const { return chunk_packs * block_threads + (anywhere ? 8 : 0); }
};

// Warps of a block that compute nothing.
inline constexpr int kStreamHelpers = 2;

// Of a row, statistics live until every warp knows the total.
inline constexpr int kStreamedRows = 4;

// Whether threads keep statistics of their own: warps then have one part for the whole row, instead of one a chunk.
template <class Row>
concept KeepsOwnStats = requires(const Row& row, const typename Row::Stats& own) { row.reduce(own); };

template <class Row, class Tile>
constexpr int kPartsOfWarp = KeepsOwnStats<Row> ? 1 : Tile::shape.chunks();

template <class Row, class Tile>
struct StreamStorage {
  static constexpr int kParts = kPartsOfWarp<Row, Tile> * (Tile::shape.threads / kWarp);
  typename Row::Stats own[kStreamedRows][kParts];               // [row, part * warp] of this block
  typename Row::Stats all[kStreamedRows][Tile::shape.cluster];  // [row, block]
  typename Row::Total total[kStreamedRows];
  uint64_t gathered[kStreamedRows];  // mbarriers: every thread's part is in `own`, an earlier row's `total` read
  uint64_t arrived[kStreamedRows];   // every block has sent its part to `all`
  uint64_t known[kStreamedRows];     // the total
  TmaRing<Tile::shape.slots> chunk;
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// What one block does. Chunks are counted through all of its rows.
template <class Row, class Tile>
class StreamBlock {
  using T = typename Row::Value;
  using Stats = typename Row::Stats;
  using Total = typename Row::Total;
  static constexpr int kInputs = Row::kInputs, kChunks = Tile::shape.chunks(), kSlots = Tile::shape.slots,
                       kWidth = kPack<T>;
  static constexpr int kCluster = Tile::shape.cluster;
  static constexpr bool kAnywhere = Tile::shape.anywhere;
  static_assert(Tile::shape.has_room());

 public:
  __device__ __forceinline__ StreamBlock(const Row& row, uint4* ring, StreamStorage<Row, Tile>& shared)
      : row_(row), ring_(ring), shared_(shared) {
    threads_ = blockDim.x - kStreamHelpers * kWarp;
    constexpr StreamTile tile = Tile::shape;
    image_ = tile.image_packs(threads_);
    cols_ = static_cast<int>(row.cols);
    rank_ = kCluster > 1 ? cluster_rank() : 0;
    const int packs = (cols_ + kWidth - 1) / kWidth, slice = (packs + kCluster - 1) / kCluster;
    first_pack_ = rank_ * slice;
    packs_ = max(min(packs - first_pack_, slice), 0);
    first_row_ = blockIdx.x / kCluster;
    row_step_ = gridDim.x / kCluster;
    rows_ = static_cast<int>((row.rows - first_row_ + row_step_ - 1) / row_step_);
  }

  __device__ __forceinline__ void prepare() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStreamedRows; ++i) {
        ptx::mbarrier_init(&shared_.gathered[i], threads_);
        ptx::mbarrier_init(&shared_.arrived[i], 1);
        ptx::mbarrier_init(&shared_.known[i], kWarp);
      }
      shared_.chunk.init(1 + (kAnywhere ? kWarp : 0), threads_);  // the bytes, and each lane's single
      ptx::fence_mbarrier_init();
    }
    join();  // every block's barriers exist before anyone signals them
  }

  // Every thread of the cluster. At the end: nobody leaves while others may still send statistics here.
  __device__ __forceinline__ void join() {
    if constexpr (kCluster > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  }

  // One warp.
  __device__ __forceinline__ void load() {
    const uint64_t policy = row_.load_policy();
    const int lane = threadIdx.x % kWarp;
    for (int s = 0; s < rows_ * kChunks; ++s) {
      const int slot = s % kSlots;
      Copy copies[kInputs];
      Single singles[kInputs];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        copies[k] = copy_of(row_.input(k, row_of(s)), s % kChunks);
        if constexpr (kAnywhere) singles[k] = single_of(copies[k], lane);
      }
      if (s >= kSlots) shared_.chunk.wait_empty({slot, (s / kSlots - 1) % 2});
      if (lane == 0) {
        int packs = 0;
#pragma unroll
        for (int k = 0; k < kInputs; ++k) packs += copies[k].packs();
        shared_.chunk.expect({slot}, packs * 16);
#pragma unroll
        for (int k = 0; k < kInputs; ++k) {
          const Copy& copy = copies[k];
          if (copy.packs() == 0) continue;
          ptx::bulk_load(image(slot, k) + copy.from, copy.x + copy.from * kWidth - copy.offset, copy.packs() * 16,
                         &shared_.chunk.full[slot], policy);
        }
      }
      if constexpr (kAnywhere) {
#pragma unroll
        for (int k = 0; k < kInputs; ++k) {
          if (singles[k].at >= 0) reinterpret_cast<T*>(image(slot, k))[singles[k].at] = singles[k].value;
        }
        shared_.chunk.arrive({slot});
      } else {
        __syncwarp();  // no lane is left waiting for a phase of `drained` that others have seen pass twice
      }
    }
  }

  // One warp.
  __device__ __forceinline__ void exchange() {
    const int lane = threadIdx.x % kWarp;
    for (int k = 0; k < rows_; ++k) {
      const int at = k % kStreamedRows, parity = k / kStreamedRows % 2;
      ptx::mbarrier_wait(&shared_.gathered[at], parity);
      Stats stats = row_.combine(shared_.own[at], kPartsOfWarp<Row, Tile> * (threads_ / kWarp));
      if constexpr (kCluster > 1) {
        share_in_cluster(shared_.all[at], rank_, lane, &shared_.arrived[at], stats);
        ptx::mbarrier_wait_cluster(&shared_.arrived[at], parity);
        stats = row_.combine(shared_.all[at], kCluster);
        __syncwarp();  // every lane has read all, which other blocks send again once they have later rows' of this one
      }
      if (lane == 0) {
        const Total total = row_.total(stats);
        shared_.total[at] = total;
        if (rank_ == 0) row_.keep(row_of(k * kChunks), total);
      }
      ptx::mbarrier_arrive(&shared_.known[at]);
    }
  }

  // The others.
  __device__ __forceinline__ void compute() {
    const int chunks = rows_ * kChunks;
    Total total;
    for (int s = -kChunks; s < chunks; ++s) {
      if (s + kChunks < chunks) gather(s + kChunks);
      if (s < 0) continue;
      if (s % kChunks == 0) {
        const int k = s / kChunks, at = k % kStreamedRows;
        ptx::mbarrier_wait(&shared_.known[at], k / kStreamedRows % 2);
        total = shared_.total[at];
      }
      finish(s, total);
    }
  }

 private:
  // Of a row's chunk: element `offset + column` of the image in the ring holds that column.
  struct Copy {
    const T* x;
    int offset;
    int from, to;  // packs of the image that lie within the row
    int end;       // of the image

    __device__ __forceinline__ int packs() const { return max(to - from, 0); }
  };

  // A value that goes to an element of the image, -1 for none.
  struct Single {
    T value;
    int at;
  };

  __device__ __forceinline__ int64_t row_of(int s) const { return first_row_ + s / kChunks * row_step_; }
  __device__ __forceinline__ uint4* image(int slot, int k) const { return ring_ + (slot * kInputs + k) * image_; }
  __device__ __forceinline__ int pack_of(int chunk) const {
    return first_pack_ + chunk * Tile::shape.chunk_packs * threads_;
  }
  __device__ __forceinline__ int packs_of(int chunk) const {
    const int most = Tile::shape.chunk_packs * threads_;
    return max(min(packs_ - chunk * most, most), 0);
  }

  __device__ __forceinline__ Copy copy_of(const T* x, int chunk) const {
    const int packs = packs_of(chunk), col = pack_of(chunk) * kWidth;
    if constexpr (!kAnywhere) return {x, -col, 0, packs, packs};
    const int offset = phase_of(x) - col, end = packs > 0 ? packs + 2 : 0;
    return {x, offset, packs > 0 && offset > 0 ? 1 : 0, min((cols_ + offset) / kWidth, end), end};
  }

  // Values that bulk copies cannot bring, one per lane: the columns before the first border of the row, those after the last, and padding behind them.
  __device__ __forceinline__ Single single_of(const Copy& copy, int lane) const {
    int col = -1;
    if (lane < kWidth) {
      if (copy.from > 0 && lane < kWidth - copy.offset) col = lane;
    } else {
      const int at = max(copy.from, copy.to) * kWidth + lane - kWidth;
      if (at < copy.end * kWidth) col = at - copy.offset;
    }
    if (col < 0 || col >= (cols_ + kWidth - 1) / kWidth * kWidth) return {T{}, -1};
    const uint4 padding = Row::padding();
    return {col < cols_ ? copy.x[col] : reinterpret_cast<const T&>(padding), copy.offset + col};
  }

  // The packs of this thread from element `first` of each image on, padding from the chunk's pack `count` on. The loads
  // come before all else, so that they are under way together.
  template <bool straddles>
  __device__ __forceinline__ void read(uint4 (&x)[Tile::shape.chunk_packs][kInputs], int slot,
                                       const int (&first)[kInputs], int count) const {
    constexpr int kPacks = Tile::shape.chunk_packs;
    uint4 next[straddles ? kPacks : 1][kInputs];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int pack = i * threads_ + threadIdx.x;
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        const uint4* from = image(slot, k) + first[k] / kWidth + pack;
        x[i][k] = pack < count ? from[0] : Row::padding();
        if constexpr (straddles) next[i][k] = pack < count ? from[1] : Row::padding();
      }
    }
    if constexpr (straddles) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int k = 0; k < kInputs; ++k) x[i][k] = straddling_pack<T>(x[i][k], next[i][k], first[k] % kWidth);
      }
    }
  }

  __device__ __forceinline__ void gather(int s) {
    const int slot = s % kSlots, chunk = s % kChunks, k = s / kChunks, lane = threadIdx.x % kWarp;
    const int packs = packs_of(chunk);
    int first[kInputs] = {};
    if constexpr (kAnywhere) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) first[i] = phase_of(row_.input(i, row_of(s)));
    }
    shared_.chunk.wait({slot, s / kSlots % 2});
    uint4 x[Tile::shape.chunk_packs][kInputs];
    read<kAnywhere>(x, slot, first, packs);
    Stats stats;
    if constexpr (KeepsOwnStats<Row>) {
      own_ = row_.include(chunk == 0 ? Stats::empty() : own_, x);
      if (chunk < kChunks - 1) return;
      stats = row_.reduce(own_);
    } else {
      int valid = 0;
#pragma unroll
      for (int i = 0; i < Tile::shape.chunk_packs; ++i) valid += i * threads_ + static_cast<int>(threadIdx.x) < packs;
      stats = row_.template gather<kWarp>(x, valid);
    }
    const int warps = threads_ / kWarp, at = k % kStreamedRows, part = KeepsOwnStats<Row> ? 0 : chunk;
    if (lane == 0) shared_.own[at][part * warps + threadIdx.x / kWarp] = stats;
    if (chunk == kChunks - 1) ptx::mbarrier_arrive(&shared_.gathered[at]);
  }

  __device__ __forceinline__ void finish(int s, const Total& total) {
    const int slot = s % kSlots, chunk = s % kChunks;
    const int64_t r = row_of(s);
    if constexpr (!kAnywhere) {
      const int first[kInputs] = {};
      finish_packs<false>(slot, chunk, r, 0, cols_ / kWidth, first, total);
    } else {
      const int head = min((kWidth - phase_of(row_.output(r))) % kWidth, cols_);  // columns before the first border
      const int packs = (cols_ - head) / kWidth;
      int first[kInputs], offset[kInputs];
      bool straddles = false;
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        const int phase = phase_of(row_.input(k, r));
        offset[k] = phase - pack_of(chunk) * kWidth;
        first[k] = phase + head;
        straddles = straddles || first[k] % kWidth != 0;
      }
      if (straddles) {
        finish_packs<true>(slot, chunk, r, head, packs, first, total);
      } else {
        finish_packs<false>(slot, chunk, r, head, packs, first, total);
      }
      finish_edges(slot, chunk, r, head, packs, offset, total);
    }
    shared_.chunk.release({slot});
  }

  // Of the row's `packs` after its first `head` columns, those of the chunk; its first begins at element `first` of each
  // image.
  template <bool straddles>
  __device__ __forceinline__ void finish_packs(int slot, int chunk, int64_t r, int head, int packs,
                                               const int (&first)[kInputs], const Total& total) {
    const int begin = pack_of(chunk), count = min(packs - begin, packs_of(chunk));
    uint4 x[Tile::shape.chunk_packs][kInputs];
    read<straddles>(x, slot, first, count);
#pragma unroll
    for (int i = 0; i < Tile::shape.chunk_packs; ++i) {
      const int pack = i * threads_ + threadIdx.x;
      if (pack < count) row_.finish(r, head + (begin + pack) * kWidth, x[i], total, {});
    }
  }

  // The columns before the row's packs and after them, a thread each.
  __device__ __forceinline__ void finish_edges(int slot, int chunk, int64_t r, int head, int packs,
                                               const int (&offset)[kInputs], const Total& total) {
    const int begin = pack_of(chunk), count = packs_of(chunk), i = threadIdx.x;
    int col = -1;
    if (i < kWidth) {
      if (begin == 0 && i < head) col = i;
    } else if (i < 2 * kWidth && packs >= begin && packs < begin + count) {
      col = head + packs * kWidth + i - kWidth;
    }
    if (col < 0 || col >= cols_) return;
    T x[kInputs];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) x[k] = reinterpret_cast<const T*>(image(slot, k))[offset[k] + col];
    row_.finish_one(r, col, x, total);
  }

  const Row& row_;
  uint4* ring_;  // [slots, inputs, image]
  StreamStorage<Row, Tile>& shared_;
  int threads_, image_, cols_, rank_, rows_;
  int first_pack_, packs_;  // the slice of this block
  int64_t first_row_, row_step_;
  Stats own_;  // of this thread's share of the row that is being gathered, where it keeps any
};

#endif

template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads + kStreamHelpers * kWarp, Tile::shape.min_blocks)
    row_stream_kernel([[maybe_unused]] const Row row) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  extern __shared__ __align__(128) uint4 ring[];
  __shared__ StreamStorage<Row, Tile> shared;
  StreamBlock<Row, Tile> block(row, ring, shared);
  block.prepare();
  const int helper = (blockDim.x - threadIdx.x - 1) / kWarp;
  if (helper == 0) {
    block.load();
  } else if (helper == 1) {
    block.exchange();
  } else {
    block.compute();
  }
  block.join();
#endif
}

template <class Row, class Tile>
void launch_stream_tile(const Row& row, int64_t packs, cudaStream_t stream) {
  constexpr StreamTile tile = Tile::shape;
  const unsigned threads = row_threads((packs + tile.cluster - 1) / tile.cluster, tile.packs, tile.threads);
  LaunchConfig config;
  config.block = dim3(threads + kStreamHelpers * kWarp);
  config.dynamic_smem = tile.slots * Row::kInputs * tile.image_packs(static_cast<int>(threads)) * 16;
  config.cluster = tile.cluster;
  const int64_t clusters = std::min<int64_t>(row.rows, resident_clusters<&row_stream_kernel<Row, Tile>>(config));
  config.grid = dim3(static_cast<unsigned>(clusters * tile.cluster));
  launch<&row_stream_kernel<Row, Tile>>(config, stream, row);
}

// Through the first tile that holds the row.
template <class Row, class Tiles>
void launch_stream(const Row& row, cudaStream_t stream, Tiles tiles) {
  constexpr int kWidth = kPack<typename Row::Value>;
  const int64_t packs = (row.cols + kWidth - 1) / kWidth;
  with_first_tile(tiles, packs, [&]<class Tile>() { launch_stream_tile<Row, Tile>(row, packs, stream); });
}

// Rows that begin anywhere: up to 1 MiB.
inline constexpr int64_t kMostStreamBytes = 1 << 20;

// One input, of threads that keep statistics of their own: as many warps as a multiprocessor's registers allow, as each is
// a chain of instructions that wait for one another; chunks of four packs for each.
constexpr StreamTile one_input_stream(int cluster) {
  return {
      .threads = 800, .packs = 8, .chunk_packs = 4, .slots = 4, .min_blocks = 1, .cluster = cluster, .anywhere = true};
}
struct OneInputStreamTiles {
  static constexpr StreamTile tiles[] = {one_input_stream(1), one_input_stream(2), one_input_stream(4),
                                         one_input_stream(8), one_input_stream(16)};
};
using StreamTiles1 = TilesOf<OneInputStreamTiles>;
static_assert(16 * kMostRowPacks<StreamTiles1> >= kMostStreamBytes);

// Two inputs: as long. Up to 512 KiB in one chunk a block and row.
constexpr StreamTile two_input_stream(int threads, int min_blocks, int cluster) {
  return {.threads = threads,
          .packs = 4,
          .chunk_packs = 4,
          .slots = 3,
          .min_blocks = min_blocks,
          .cluster = cluster,
          .anywhere = true};
}
struct TwoInputStreamTiles {
  static constexpr StreamTile tiles[] = {
      {.threads = 128, .packs = 4, .chunk_packs = 2, .slots = 6, .min_blocks = 4, .cluster = 1, .anywhere = true},
      two_input_stream(256, 2, 1),
      two_input_stream(256, 2, 2),
      two_input_stream(256, 2, 4),
      two_input_stream(256, 2, 8),
      two_input_stream(512, 1, 8),
      two_input_stream(512, 1, 16),
      {.threads = 512, .packs = 8, .chunk_packs = 1, .slots = 13, .min_blocks = 1, .cluster = 16, .anywhere = true}};
};
using StreamTiles2 = TilesOf<TwoInputStreamTiles>;
static_assert(16 * kMostRowPacks<StreamTiles2> == kMostStreamBytes);

}  // namespace warpsmith
