// The loop of the kernels that stream weights through shared memory, times up to 16 vectors.
//   Each warp fills a ring of its own with copies that need no registers, so that far more is under way than registers
//   hold, and no warp waits for another before the end of a tile. The warps of a block share a tile's k, and the ring
//   runs on from one tile to the next, so that DRAM has work while sums are added up. Rows are dealt out evenly, not by
//   whole tiles: a last wave of tiles would leave most of the GPU idle.
#pragma once

#include "device/pipeline.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/cp_async_zfill.h"
#include "device/swizzle.h"
#include "device/warp.h"
#include "gemm/skinny_sum.cuh"
#include "host/launch.h"

namespace warpsmith {

// What a warp takes at a time: Slot has
//   rows, vectors     of a tile; most rows of weights, and vectors of the call, rounded up
//   granule           rows that tiles are made of, a divisor of `rows`
//   depth             values of k
//   chunks            of 16 bytes, in shared memory
//   Vector            type of vectors and results
//   Sums              of a warp: add(slot), and store<pitch>(to) as [vectors, pitch]
//   clear(slot, ...)  writes zeros for vectors that there are not, once and for all
//   fetch(slot, ...)  starts the copies of a step of a tile, whose rows from `count` on need no defined values
template <class Slot_, int warps_, int stages_>
struct SkinnyRingTile {
  using Slot = Slot_;
  static constexpr int rows = Slot::rows, vectors = Slot::vectors;
  static constexpr int warps = warps_, stages = stages_;
  static constexpr int threads = warps * kWarp;
  static constexpr int pitch = rows + 4;  // of the warps' sums, against bank conflicts
  static constexpr int ring_bytes = warps * stages * Slot::chunks * kChunkBytes;
  static constexpr int shared_bytes = ring_bytes + warps * vectors * pitch * static_cast<int>(sizeof(float));
};

// The rows of weights of a tile.
struct RingRows {
  int64_t first;
  int count;
};

// The rows of a block, in as few tiles as hold them, which differ by one granule at most.
template <class Slot>
class RingShare {
  static constexpr int kMost = Slot::rows / Slot::granule;  // granules of a tile
  static_assert(kMost * Slot::granule == Slot::rows, "tiles of whole granules");
  int64_t m_, first_, each_, larger_;  // rows; granule of the first tile; granules of a tile, tiles with one more

 public:
  int64_t tiles;

  __device__ RingShare(int64_t m, int64_t block, int64_t blocks) : m_(m) {
    const int64_t granules = (m + Slot::granule - 1) / Slot::granule;
    first_ = granules * block / blocks;
    const int64_t share = granules * (block + 1) / blocks - first_;
    tiles = (share + kMost - 1) / kMost;
    each_ = share / tiles;
    larger_ = share % tiles;
  }

  __device__ __forceinline__ RingRows operator[](int64_t tile) const {
    const int64_t row = (first_ + tile * each_ + min(tile, larger_)) * Slot::granule;
    const int64_t rows = (each_ + (tile < larger_ ? 1 : 0)) * Slot::granule;
    return {row, static_cast<int>(min(rows, m_ - row))};
  }
};

// Where chunk `chunk` of row `row` of a slot lies.
__host__ __device__ constexpr int ring_place(int row, int chunk) {
  constexpr int kChunks = kRingRowBytes / kChunkBytes;
  return TileSwizzle<uint4, kChunks>{}(row * kChunks + chunk);
}

namespace {

template <class Tile, class Args>
__global__ void __launch_bounds__(Tile::threads, 1) skinny_ring_kernel(const Args a) {
  using Slot = typename Tile::Slot;
  using X = typename Slot::Vector;
  extern __shared__ __align__(128) uint4 shared[];
  const int warp = threadIdx.x / kWarp;
  uint4* ring = shared + warp * Tile::stages * Slot::chunks;                          // [stages, chunks]
  float* sums = reinterpret_cast<float*>(shared) + Tile::ring_bytes / sizeof(float);  // [warps, vectors, pitch]

  // this block's slice of k, in slots; those of a tile are dealt out to the warps
  const int64_t slots = (a.k + Slot::depth - 1) / Slot::depth, split = blockIdx.y;
  const int begin = static_cast<int>(slots * split / a.splits) + warp;
  const int end = static_cast<int>(slots * (split + 1) / a.splits);
  const RingShare<Slot> share(a.m, blockIdx.x, gridDim.x);
  for (int stage = 0; stage < Tile::stages; ++stage) Slot::clear(ring + stage * Slot::chunks, a.vectors);

  // copies ahead of the products, tile by tile
  int64_t next_tile = begin < end ? 0 : share.tiles;
  int next = begin;
  RingRows next_rows = share[0];
  RingSlot<Tile::stages> fill;
  const auto fetch = [&] {
    if (next_tile < share.tiles) {
      Slot::fetch(ring + fill.slot * Slot::chunks, a, next_rows, next);
      next += Tile::warps;
      if (next >= end) {
        next = begin;
        next_rows = share[++next_tile];
      }
    }
    ptx::cp_async_commit();
    fill.advance();
  };
#pragma unroll
  for (int i = 0; i < Tile::stages - 1; ++i) fetch();

  // the results of a tile that this thread finishes
  constexpr int kResults = (Tile::vectors * Tile::rows + Tile::threads - 1) / Tile::threads;
  const auto for_each_result = [&](const RingRows& rows, auto do_it) {
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * Tile::threads, vector = at / Tile::rows, row = at % Tile::rows;
      if (vector < a.vectors && row < rows.count) do_it(i, at, vector, rows.first + row);
    }
  };

  RingSlot<Tile::stages> use;
  for (int64_t tile = 0; tile < share.tiles; ++tile) {
    const RingRows rows = share[tile];
    float ahead[kResults];
    if (a.partial == nullptr) {
      for_each_result(rows, [&](int i, int, int vector, int64_t row) { ahead[i] = read_ahead<X>(a, vector, row); });
    }

    // multiply and add
    typename Slot::Sums sum;
    for (int at = begin; at < end; at += Tile::warps) {
      ptx::cp_async_wait<Tile::stages - 2>();
      __syncwarp();  // all lanes' copies have landed, and all have read what is overwritten next
      fetch();
      sum.add(ring + use.slot * Slot::chunks);
      use.advance();
    }

    // add up the warps
    sum.template store<Tile::pitch>(sums + warp * Tile::vectors * Tile::pitch);
    __syncthreads();
    for_each_result(rows, [&](int i, int at, int vector, int64_t row) {
      const float* from = sums + vector * Tile::pitch + at % Tile::rows;
      float total = from[0];
#pragma unroll
      for (int w = 1; w < Tile::warps; ++w) total += from[w * Tile::vectors * Tile::pitch];
      put_sum<X>(a, static_cast<int>(split), vector, row, total, ahead[i]);
    });
    __syncthreads();  // the next tile overwrites the sums
  }
  ptx::cp_async_wait<0>();
}

template <class Tile, class Args>
void launch_skinny_ring_tile(const Args& a, int most_blocks, cudaStream_t stream) {
  constexpr int64_t kLeastRows = std::max(Tile::Slot::granule, std::min(Tile::rows, kRingRows));  // of a block
  const int64_t blocks = std::clamp<int64_t>(most_blocks / a.splits, 1, (a.m + kLeastRows - 1) / kLeastRows);
  launch<&skinny_ring_kernel<Tile, Args>>(
      {{static_cast<unsigned>(blocks), static_cast<unsigned>(a.splits)}, Tile::threads, Tile::shared_bytes}, stream, a);
}

}  // namespace
}  // namespace warpsmith
