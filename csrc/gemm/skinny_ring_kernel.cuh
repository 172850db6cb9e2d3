// The loop of the kernels that stream weights through shared memory, times up to 16 vectors.
//   Each warp fills a ring of its own with copies that need no registers, so that far more is under way than registers
//   hold, and no warp waits for another before the end of a tile. The warps of a block share a tile's k, and the ring
//   runs on from one tile to the next, so that DRAM has work while sums are added up. Blocks take their places, and clear
//   what no vector fills, while the kernel before ends.
#pragma once

#include "device/pipeline.h"
#include "device/ptx/copy.h"
#include "device/start_early.h"
#include "device/swizzle.h"
#include "device/warp.h"
#include "gemm/skinny_ring_deal.h"
#include "gemm/skinny_sum.cuh"
#include "host/ceil_div.h"
#include "host/launch.h"
#include "host/min_max.h"

namespace warpsmith {

// Rows of weights of a tile: as many as it has, but none from `end` on.
struct RingRows {
  int64_t first, end;
};

// The rows of a block are a Share: tiles lie at first, first + step and so on, below end, each to be asked for its rows.
// Tiles as they are, by turns: what blocks read at a time is contiguous, but a last wave may leave most of them idle.
template <int rows>
struct WholeTiles {
  static constexpr int granule = rows;
  int64_t first, end, step, m;

  __device__ explicit WholeTiles(int64_t m) : first(blockIdx.x), end((m + rows - 1) / rows), step(gridDim.x), m(m) {}
  __device__ __forceinline__ RingRows operator[](int64_t tile) const { return {tile * rows, m}; }
};

// This block's part of `count` things in a row: as many for each block, give or take one.
struct EvenPart {
  int first, count;
};

__device__ __forceinline__ EvenPart even_part(int count) {
  const int blocks = gridDim.x, block = blockIdx.x, each = count / blocks, more = count % blocks;
  return {each * block + min(block, more), each + (block < more ? 1 : 0)};
}

// As many rows for each block, give or take a granule, in as few tiles as hold them, of equal height but the last.
template <int rows>
struct EvenShare {
  static constexpr int granule = kShareGranule;
  static_assert(rows % granule == 0, "tiles of whole granules");
  int first, end, step;  // granules, of which there are at least as many as blocks
  int64_t m;

  __device__ explicit EvenShare(int64_t m) : m(m) {
    constexpr int kMost = rows / granule;
    const EvenPart own = even_part(static_cast<int>((m + granule - 1) / granule));
    const int tiles = (own.count + kMost - 1) / kMost;
    first = own.first;
    end = first + own.count;
    step = (own.count + tiles - 1) / tiles;
  }
  __device__ __forceinline__ RingRows operator[](int at) const {
    return {int64_t{at} * granule, min(int64_t{min(at + step, end)} * granule, m)};
  }
};

// Whole tiles by turns; those that are left, too few for another turn of all blocks, are dealt out in granules.
template <int rows, int granule_>
struct FilledTurns {
  static constexpr int granule = granule_;
  static_assert(rows % granule == 0, "tiles of whole granules");
  static constexpr int first = 0, step = 1;  // turns
  int end, whole;                            // all of this block's, and those of whole tiles
  RingRows rest;
  int64_t m;

  __device__ explicit FilledTurns(int64_t m) : m(m) {
    const int64_t turn_rows = int64_t{rows} * gridDim.x;
    whole = static_cast<int>(m / turn_rows);
    const int64_t done = whole * turn_rows;
    const EvenPart own = even_part(static_cast<int>((m - done + granule - 1) / granule));
    rest.first = done + own.first * granule;
    rest.end = min(rest.first + own.count * granule, m);
    end = whole + (own.count > 0 ? 1 : 0);
  }
  __device__ __forceinline__ RingRows operator[](int turn) const {
    if (turn == whole) return rest;
    return {(int64_t{turn} * gridDim.x + blockIdx.x) * rows, m};
  }
};

// What a warp takes at a time: Slot has
//   rows, vectors     of a tile; rows of weights, and vectors of the call, rounded up
//   depth             values of k
//   chunks            of 16 bytes, in shared memory
//   Vector            type of vectors and results
//   Sums              of a warp: add(slot), and store<pitch>(to) as [vectors, pitch]
//   clear(slot, ...)  writes zeros for vectors that there are not, once and for all
//   fetch(slot, ...)  starts the copies of a step of a tile, whose rows from `end` on need no defined values
template <class Slot_, int warps_, int stages_>
struct SkinnyRingTile {
  using Slot = Slot_;
  using Share = WholeTiles<Slot::rows>;
  static constexpr int rows = Slot::rows, vectors = Slot::vectors;
  static constexpr int warps = warps_, stages = stages_;
  static constexpr int threads = warps * kWarp;
  static constexpr int pitch = rows + 4;  // of the warps' sums, against bank conflicts
  static constexpr int ring_bytes = warps * stages * Slot::chunks * kChunkBytes;
  static constexpr int shared_bytes = ring_bytes + warps * vectors * pitch * static_cast<int>(sizeof(float));
};

template <class Slot, int warps, int stages>
struct EvenRingTile : SkinnyRingTile<Slot, warps, stages> {
  using Share = EvenShare<Slot::rows>;
};

template <class Slot, int warps, int stages, int granule>
struct FilledRingTile : SkinnyRingTile<Slot, warps, stages> {
  using Share = FilledTurns<Slot::rows, granule>;
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
  const typename Tile::Share share(a.m);
  for (int stage = 0; stage < Tile::stages; ++stage) Slot::clear(ring + stage * Slot::chunks, a.vectors);
  start_early();

  // copies ahead of the products, tile by tile
  auto next_tile = begin < end ? share.first : share.end;
  int next = begin;
  RingSlot<Tile::stages> fill;
  const auto fetch = [&] {
    if (next_tile < share.end) {
      Slot::fetch(ring + fill.slot * Slot::chunks, a, share[next_tile], next);
      next += Tile::warps;
      if (next >= end) {
        next = begin;
        next_tile += share.step;
      }
    }
    ptx::cp_async_commit();
    fill.advance();
  };
#pragma unroll
  for (int i = 0; i < Tile::stages - 1; ++i) fetch();

  // the results of a tile that this thread finishes
  constexpr int kResults = (Tile::vectors * Tile::rows + Tile::threads - 1) / Tile::threads;
  const auto for_each_result = [&](const RingRows& tile, auto do_it) {
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * Tile::threads, vector = at / Tile::rows;
      const int64_t row = tile.first + at % Tile::rows;
      if (vector < a.vectors && row < tile.end) do_it(i, at, vector, row);
    }
  };

  RingSlot<Tile::stages> use;
  for (auto turn = share.first; turn < share.end; turn += share.step) {
    const RingRows tile = share[turn];
    float ahead[kResults];
    if (a.partial == nullptr) {
      for_each_result(tile, [&](int i, int, int vector, int64_t row) { ahead[i] = read_ahead<X>(a, vector, row); });
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
    for_each_result(tile, [&](int i, int at, int vector, int64_t row) {
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
  constexpr int kLeastRows = Tile::Share::granule;  // of a block
  const int64_t blocks = clamp<int64_t>(most_blocks / a.splits, 1, ceil_div(a.m, kLeastRows));
  const LaunchConfig config{.grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(a.splits)},
                            .block = Tile::threads,
                            .dynamic_smem = Tile::shared_bytes,
                            .early = true};
  launch<&skinny_ring_kernel<Tile, Args>>(config, stream, a);
}

}  // namespace
}  // namespace warpsmith
