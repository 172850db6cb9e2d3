// A row in registers, read once: the kernel behind the rungs `registers` of the row-wise operators.
//
// A block holds one row, or several short ones. Every thread loads its packs, the row's statistics are gathered, and the
// packs still in registers are finished and written. Blocks take their places while the kernel before ends, unless they
// are many and small. What is gathered and how a pack is finished is the operator's `Row`:
//
//   struct Row {
//     using Value = bf16;                                  // of the inputs
//     static constexpr int kInputs = 1;                    // tensors of [rows, cols] read together
//     struct Stats { ... };                                // of part of a row: 1 to 4 floats
//     using Total = ...;                                   // what finishing needs to know about the whole row
//     struct Columns { void load_from(const Row&, int col); void keep(uint32_t); };  // weights of a pack's columns
//     int64_t rows, cols;
//     static uint4 padding();                              // the bits of a pack beyond the end of the row
//     uint64_t load_policy() const;
//     const Value* input(int which, int64_t row) const;
//     Stats gather<lanes, packs>(const uint4 (&x)[packs][kInputs], int valid) const;  // over `lanes` neighbours
//     Stats combine(const Stats* parts, int count) const;  // at most 32; run by whole warps
//     Total total(const Stats&) const;
//     void keep(int64_t row, const Total&) const;  // run by one thread of a row
//     void finish(int64_t row, int col, const uint4 (&x)[kInputs], const Total&, const Columns&) const;
//   };
//
// Packs `valid` and beyond are padding. Mapping after quack's "Getting Memory-bound Kernels to Speed-of-Light",
// https://github.com/Dao-AILab/quack/blob/main/media/2025-07-10-membound-sol.md
#pragma once

#include "device/start_early.h"
#include "device/warp.h"
#include "host/launch.h"
#include "host/tiles.h"
#include "row/packed.h"
#include "row/rows.h"

namespace warpsmith {

struct RowTile {
  int threads;         // of a block, at most
  int lanes = 0;       // threads that share a row; 0: the whole block
  int packs;           // 128-bit packs of each input that one of them holds
  int min_blocks;      // per multiprocessor, that the registers must allow
  bool early = false;  // the columns of row/whole.cuh are loaded with the row

  constexpr int most_packs() const { return (lanes > 0 ? lanes : threads) * packs; }
  constexpr int rows_per_block() const { return lanes > 0 ? threads / lanes : 1; }
  // A block of few packs is cut to what the row needs. Many packs need every register, and with a stride that the
  // compiler knows their addresses take none.
  constexpr bool cut() const { return lanes == 0 && packs <= 2; }
  // Threads for a row of so many packs.
  constexpr int sharers(int64_t row_packs) const {
    return cut() ? static_cast<int>(row_threads(row_packs, packs, threads)) : lanes > 0 ? lanes : threads;
  }
};

namespace detail {

// Packs of a thread that lie inside every row that its tile is given: no bounds check.
template <class Tile>
constexpr int full_packs() {
  for (int full = Tile::shape.packs; full > 0; --full) {
    bool holds = true;
    for (int64_t n = Tile::least_packs; n <= Tile::most_packs; ++n) holds = holds && full * Tile::shape.sharers(n) <= n;
    if (holds) return full;
  }
  return 0;
}

// GPUs between sm_80 and sm_90 hold fewer threads.
constexpr int resident_blocks(const RowTile& tile) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900
  constexpr int kMostThreads = 1536;
#else
  constexpr int kMostThreads = 2048;
#endif
  return tile.min_blocks * tile.threads <= kMostThreads ? tile.min_blocks : kMostThreads / tile.threads;
}

// 0, since no row has 2^32 columns; see keep_packed.
template <class Row>
__device__ __forceinline__ uint32_t unknown_zero(const Row& row) {
  return static_cast<uint32_t>(static_cast<uint64_t>(row.cols) >> 32);
}

}  // namespace detail

// Blocks that let the next grid start take turns at saying so. Many that read so little would wait for theirs.
inline constexpr unsigned kSmallBlockBytes = 2048, kManyBlocks = 8192;

// Whether a grid of so many blocks starts early, and lets the next one.
template <class Row, class Tile>
__host__ __device__ constexpr bool starts_early(unsigned grid, unsigned threads) {
  return grid < kManyBlocks || threads * Tile::shape.packs * Row::kInputs * sizeof(uint4) > kSmallBlockBytes;
}

template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads, detail::resident_blocks(Tile::shape))
    row_registers_kernel(const Row row) {
  if (starts_early<Row, Tile>(gridDim.x, blockDim.x)) start_early();
  using T = typename Row::Value;
  constexpr RowTile tile = Tile::shape;
  constexpr int kFull = detail::full_packs<Tile>();
  constexpr bool kShared = tile.lanes > 0;
  constexpr int kPacks = tile.packs, kWidth = kPack<T>;
  __shared__ typename Row::Stats partial[kWarp];
  const int lanes = tile.cut() ? blockDim.x : kShared ? tile.lanes : tile.threads;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int64_t at = int64_t{blockIdx.x} * tile.rows_per_block() + (kShared ? threadIdx.x / lanes : 0);
  const int64_t r = kShared ? min(at, row.rows - 1) : at;  // every lane takes part in the shuffles
  const int packs = static_cast<int>(row.cols) / kWidth;
  const auto within = [&](int i) { return i < kFull || i * lanes + lane < packs; };

  // load
  const uint64_t policy = row.load_policy();
  uint4 x[kPacks][Row::kInputs];
  int valid = kFull;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (i >= kFull && within(i)) ++valid;
#pragma unroll
    for (int k = 0; k < Row::kInputs; ++k) {
      if (i >= kFull) x[i][k] = Row::padding();
      const auto* from = reinterpret_cast<const uint4*>(row.input(k, r)) + lane;
      if (within(i)) x[i][k] = ptx::load_streaming(from + i * lanes, policy);
    }
  }

  // gather
  typename Row::Stats stats = row.template gather<kShared ? tile.lanes : kWarp, kPacks>(x, valid);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < Row::kInputs; ++k) keep_packed(x[i][k], detail::unknown_zero(row));
  }
  if constexpr (!kShared) {
    const int warps = lanes / kWarp;
    if (warps > 1) {
      if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = stats;
      __syncthreads();
      stats = row.combine(partial, warps);
    }
  }
  const typename Row::Total total = row.total(stats);

  // finish
  if (kShared && at >= row.rows) return;
  if (lane == 0) row.keep(r, total);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (within(i)) {
      const int col = lane * kWidth + i * lanes * kWidth;
      typename Row::Columns columns;
      columns.load_from(row, col);
      row.finish(r, col, x[i], total, columns);
    }
  }
}

template <class Row, class Tile>
void launch_row_tile(const Row& row, cudaStream_t stream) {
  constexpr RowTile tile = Tile::shape;
  const unsigned threads = tile.lanes > 0 ? tile.threads : tile.sharers(row.cols / kPack<typename Row::Value>);
  const unsigned grid = static_cast<unsigned>((row.rows + tile.rows_per_block() - 1) / tile.rows_per_block());
  const LaunchConfig config{.grid = grid, .block = threads, .early = starts_early<Row, Tile>(grid, threads)};
  launch<&row_registers_kernel<Row, Tile>>(config, stream, row);
}

// Through the first tile that holds the row.
template <class Row, class Tiles>
void launch_row(const Row& row, cudaStream_t stream, Tiles tiles) {
  with_first_tile(tiles, row.cols / kPack<typename Row::Value>,
                  [&]<class Tile>() { launch_row_tile<Row, Tile>(row, stream); });
}

// One input: up to 128 KiB. Measured on an H200: two packs a thread up to 16 KiB, then eight.
struct OneInputTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 4, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 2, .min_blocks = 12},
      {.threads = 128, .lanes = 16, .packs = 2, .min_blocks = 12},
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 12},
      {.threads = 512, .packs = 2, .min_blocks = 4},
      {.threads = 256, .packs = 8, .min_blocks = 4},
      {.threads = 512, .packs = 8, .min_blocks = 2},
      {.threads = 1024, .packs = 8, .min_blocks = 1},
  };
};
using RowTiles = TilesOf<OneInputTiles>;
inline constexpr int64_t kMostRowBytes = 16 * kMostRowPacks<RowTiles>;
static_assert(kMostRowBytes == 128 * 1024);

// Two inputs: up to 64 KiB.
struct TwoInputTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 4, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 16, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 32, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 8},
      {.threads = 512, .packs = 2, .min_blocks = 3},
      {.threads = 512, .packs = 4, .min_blocks = 2},
      {.threads = 1024, .packs = 4, .min_blocks = 1},
  };
};
using RowTiles2 = TilesOf<TwoInputTiles>;
inline constexpr int64_t kMostRowBytes2 = 16 * kMostRowPacks<RowTiles2>;
static_assert(kMostRowBytes2 == 64 * 1024);

}  // namespace warpsmith
