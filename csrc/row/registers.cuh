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
//     void with_columns(body) const;               // calls body.template operator()<Columns>(), of whatever dtype
//     void finish(int64_t row, int col, const uint4 (&x)[kInputs], const Total&, const Columns&) const;
//   };
//
// Where two inputs are but added, only their sum stays in registers, and leaves as soon as it is known:
//
//     static constexpr bool kJoins = true;
//     static constexpr int kInputBytes;  // of a pack of the first input, 8 or 16
//     bool has_input(int which) const;
//     uint4 join(int64_t row, int col, const uint4& first, const uint4& second) const;
//     void hand_out(int64_t at, const uint4& sum) const;  // `at`: elements from the first one
//
// Rows that fill their tile have a kernel that tests and pads nothing. For them a Row may have
//
//     static constexpr bool kHoldsColumns<packs>;  // whether there are registers for the columns of so many packs
//     Stats gather_whole<lanes, packs>(const uint4 (&x)[packs][kInputs]) const;  // of a row of lanes * packs packs
//     Stats combine<count>(const Stats* parts) const;                            // of a power of two
//
// Packs `valid` and beyond are padding. Mapping after quack's "Getting Memory-bound Kernels to Speed-of-Light",
// https://github.com/Dao-AILab/quack/blob/main/media/2025-07-10-membound-sol.md
#pragma once

#include <utility>

#include "device/start_early.h"
#include "device/warp.h"
#include "host/launch.h"
#include "host/tiles.h"
#include "row/packed.h"
#include "row/rows.h"

namespace warpsmith {

struct RowTile {
  int threads;          // of a block, at most
  int lanes = 0;        // threads that share a row; 0: the whole block
  int packs;            // 128-bit packs of each input that one of them holds
  int min_blocks;       // per multiprocessor, that the registers must allow
  bool filled = false;  // by every row it is given: all threads hold all of their packs
  bool early = false;   // columns are loaded with the row, where registers hold them: they arrive while it is gathered

  constexpr int most_packs() const { return (lanes > 0 ? lanes : threads) * packs; }
  constexpr int rows_per_block() const { return lanes > 0 ? threads / lanes : 1; }
  // A block of few packs is cut to what the row needs. Many packs need every register, and with a stride that the
  // compiler knows their addresses take none.
  constexpr bool cut() const { return lanes == 0 && packs <= 2 && !filled; }
  constexpr bool holds(int64_t row_packs) const {
    return filled ? row_packs == most_packs() : row_packs <= most_packs();
  }
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
    for (int64_t n = Tile::shape.filled ? Tile::most_packs : Tile::least_packs; n <= Tile::most_packs; ++n) {
      holds = holds && full * Tile::shape.sharers(n) <= n;
    }
    if (holds) return full;
  }
  return 0;
}

template <class Row, int packs>
constexpr bool kHolds = requires { requires Row::template kHoldsColumns<packs>; };

template <class Row>
constexpr bool kJoinsInputs = requires { requires Row::kJoins; };

// A pack of the k-th input, the `at`-th of its row.
template <int k, class Row>
__device__ __forceinline__ uint4 load_pack(const Row& row, const void* from, int at, uint64_t policy) {
  if constexpr (kJoinsInputs<Row>) {
    if (!row.has_input(k)) return Row::padding();
    if constexpr (k == 0 && Row::kInputBytes == 8) {
      const uint2 half = static_cast<const uint2*>(from)[at];
      return {half.x, half.y, 0, 0};
    }
  }
  return ptx::load_streaming(static_cast<const uint4*>(from) + at, policy);
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
  constexpr RowTile tile = Tile::shape;
  if (tile.filled || starts_early<Row, Tile>(gridDim.x, blockDim.x)) start_early();
  using T = typename Row::Value;
  constexpr int kFull = detail::full_packs<Tile>();
  constexpr bool kShared = tile.lanes > 0, kJoins = detail::kJoinsInputs<Row>;
  constexpr int kPacks = tile.packs, kWidth = kPack<T>, kHeld = kJoins ? 1 : Row::kInputs;
  __shared__ typename Row::Stats partial[kWarp];
  const int lanes = tile.cut() ? blockDim.x : kShared ? tile.lanes : tile.threads;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int64_t at = int64_t{blockIdx.x} * tile.rows_per_block() + (kShared ? threadIdx.x / lanes : 0);
  const int64_t r = kShared ? min(at, row.rows - 1) : at;  // every lane takes part in the shuffles
  const int packs = static_cast<int>(row.cols) / kWidth;
  const auto within = [&](int i) { return i < kFull || i * lanes + lane < packs; };
  const auto column = [&](int i) { return lane * kWidth + i * lanes * kWidth; };

  // load
  const uint64_t policy = row.load_policy();
  uint4 x[kPacks][Row::kInputs];
  int valid = kFull;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (i >= kFull && within(i)) ++valid;
    const auto load = [&]<int... k>(std::integer_sequence<int, k...>) {
      const int index = i * lanes + lane;
      if constexpr (kJoins) {
        // Beyond the end, the last pack again: behind a branch, a load would wait for what a pack before is joined with.
        const int there = i < kFull ? index : min(index, packs - 1);
        ((x[i][k] = detail::load_pack<k>(row, row.input(k, r), there, policy)), ...);
      } else {
        ((x[i][k] = i < kFull ? x[i][k] : Row::padding()), ...);
        if (within(i)) ((x[i][k] = detail::load_pack<k>(row, row.input(k, r), index, policy)), ...);
      }
    };
    load(std::make_integer_sequence<int, Row::kInputs>{});
  }
  constexpr bool kEarly = tile.early && detail::kHolds<Row, kPacks>;
  typename Row::Columns early[kEarly ? kPacks : 1];
  if constexpr (kEarly) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) early[i].load_from(row, column(i));
  }

  // join
  if constexpr (kJoins) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (within(i)) {
        x[i][0] = row.join(r, column(i), x[i][0], x[i][1]);
        if (!kShared || at < row.rows) row.hand_out(at * row.cols + column(i), x[i][0]);
      } else {
        x[i][0] = Row::padding();
      }
    }
  }

  // gather
  constexpr int kTogether = kShared ? tile.lanes : kWarp;
  typename Row::Stats stats;
  if constexpr (tile.filled && kShared && requires { row.template gather_whole<kTogether, kPacks>(x); }) {
    stats = row.template gather_whole<kTogether, kPacks>(x);
  } else {
    stats = row.template gather<kTogether, kPacks>(x, valid);
  }
  const auto forget_values = [&] {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) keep_packed(x[i][k], detail::unknown_zero(row));
    }
  };
  if constexpr (!kEarly) forget_values();
  if constexpr (!kShared) {
    const int warps = lanes / kWarp;
    if (warps > 1) {
      if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = stats;
      __syncthreads();
      if constexpr (tile.filled && requires { row.template combine<tile.threads / kWarp>(partial); }) {
        stats = row.template combine<tile.threads / kWarp>(partial);
      } else {
        stats = row.combine(partial, warps);
      }
    }
  }
  const typename Row::Total total = row.total(stats);
  if constexpr (kEarly) forget_values();

  // finish
  if (kShared && at >= row.rows) return;
  if (lane == 0) row.keep(at, total);
  if constexpr (kEarly) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      early[i].keep(detail::unknown_zero(row));
      row.finish(at, column(i), x[i], total, early[i]);
    }
  } else {
    row.with_columns([&]<class Columns>() {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (within(i)) {
          Columns columns;
          columns.load_from(row, column(i));
          row.finish(at, column(i), x[i], total, columns);
        }
      }
    });
  }
}

template <class Row, class Tile>
void launch_row_tile(const Row& row, cudaStream_t stream) {
  constexpr RowTile tile = Tile::shape;
  const unsigned threads = tile.lanes > 0 ? tile.threads : tile.sharers(row.cols / kPack<typename Row::Value>);
  const unsigned grid = static_cast<unsigned>((row.rows + tile.rows_per_block() - 1) / tile.rows_per_block());
  const LaunchConfig config{
      .grid = grid, .block = threads, .early = tile.filled || starts_early<Row, Tile>(grid, threads)};
  launch<&row_registers_kernel<Row, Tile>>(config, stream, row);
}

// Through the first tile that holds the row; false where none does.
template <class Row, class Tiles>
bool launch_row(const Row& row, cudaStream_t stream, Tiles tiles) {
  const int64_t packs = row.cols / kPack<typename Row::Value>;
  return with_first_tile(
      tiles, [packs]<class Tile>() { return Tile::shape.holds(packs); },
      [&]<class Tile>() { launch_row_tile<Row, Tile>(row, stream); });
}

// What a Row without weights says of them.
template <class Row>
struct WithoutColumns {
  struct Columns {
    __device__ void load_from(const Row&, int) {}
    __device__ void keep(uint32_t) {}
  };
  template <int packs>
  static constexpr bool kHoldsColumns = false;
  template <class Body>
  __device__ __forceinline__ void with_columns(Body&& body) const {
    body.template operator()<Columns>();
  }
};

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
