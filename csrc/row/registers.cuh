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

#include <tuple>

#include "device/start_early.h"
#include "device/warp.h"
#include "host/launch.h"
#include "row/packed.h"
#include "row/rows.h"

namespace warpsmith {

// threads of a block | threads that share a row, 0: the whole block | 128-bit packs of each input that one of them holds |
// blocks per multiprocessor that the registers must allow
template <int threads_, int lanes_, int packs_, int min_blocks_>
struct RowTile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr int most_packs = (lanes > 0 ? lanes : threads) * packs;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
  // Of a thread's packs, those within any row that is too long for the tile before: they need no test.
  static constexpr int full = packs / 2;
  // A block of few packs is cut to what the row needs. Many packs need every register, and with a stride that the
  // compiler knows their addresses take none.
  static constexpr bool cut = lanes == 0 && packs <= 2;

  static constexpr int sharers(int row_packs) {
    return cut ? static_cast<int>(row_threads(row_packs, packs, threads)) : lanes > 0 ? lanes : threads;
  }
};

namespace detail {

template <class... Tile>
constexpr bool full_packs_are_full(std::tuple<Tile...>) {
  int previous = 0;
  bool holds = true;
  const auto check = [&]<class One>() {
    for (int n = previous + 1; n <= One::most_packs; ++n) holds = holds && One::full * One::sharers(n) <= n;
    previous = One::most_packs;
  };
  (check.template operator()<Tile>(), ...);
  return holds;
}

// GPUs between sm_80 and sm_90 hold fewer threads.
template <class Tile>
constexpr int resident_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900
  constexpr int kMostThreads = 1536;
#else
  constexpr int kMostThreads = 2048;
#endif
  return Tile::min_blocks * Tile::threads <= kMostThreads ? Tile::min_blocks : kMostThreads / Tile::threads;
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
  return grid < kManyBlocks || threads * Tile::packs * Row::kInputs * sizeof(uint4) > kSmallBlockBytes;
}

template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::threads, detail::resident_blocks<Tile>()) row_registers_kernel(const Row row) {
  if (starts_early<Row, Tile>(gridDim.x, blockDim.x)) start_early();
  using T = typename Row::Value;
  constexpr bool kShared = Tile::lanes > 0;
  constexpr int kPacks = Tile::packs, kWidth = kPack<T>;
  __shared__ typename Row::Stats partial[kWarp];
  const int lanes = Tile::cut ? blockDim.x : kShared ? Tile::lanes : Tile::threads;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int64_t at = int64_t{blockIdx.x} * Tile::rows_per_block + (kShared ? threadIdx.x / lanes : 0);
  const int64_t r = kShared ? min(at, row.rows - 1) : at;  // every lane takes part in the shuffles
  const int packs = static_cast<int>(row.cols) / kWidth;
  const auto within = [&](int i) { return i < Tile::full || i * lanes + lane < packs; };

  // load
  const uint64_t policy = row.load_policy();
  uint4 x[kPacks][Row::kInputs];
  int valid = Tile::full;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (i >= Tile::full && within(i)) ++valid;
#pragma unroll
    for (int k = 0; k < Row::kInputs; ++k) {
      if (i >= Tile::full) x[i][k] = Row::padding();
      const auto* from = reinterpret_cast<const uint4*>(row.input(k, r)) + lane;
      if (within(i)) x[i][k] = ptx::load_streaming(from + i * lanes, policy);
    }
  }

  // gather
  typename Row::Stats stats = row.template gather<kShared ? Tile::lanes : kWarp, kPacks>(x, valid);
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
  const int sharers = Tile::sharers(static_cast<int>(row.cols / kPack<typename Row::Value>));
  const unsigned threads = Tile::lanes > 0 ? Tile::threads : sharers;
  const unsigned grid = static_cast<unsigned>((row.rows + Tile::rows_per_block - 1) / Tile::rows_per_block);
  const LaunchConfig config{.grid = grid, .block = threads, .early = starts_early<Row, Tile>(grid, threads)};
  launch<&row_registers_kernel<Row, Tile>>(config, stream, row);
}

// Rows of at most this many packs fit the tiles.
template <class Tiles>
constexpr int64_t kMostRowPacks = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

// Through the first tile that holds the row.
template <class Row, class... Tile>
void launch_row(const Row& row, cudaStream_t stream, std::tuple<Tile...>) {
  static_assert(detail::full_packs_are_full(std::tuple<Tile...>{}),
                "a tile's full packs must fit every row it is given");
  const int64_t packs = row.cols / kPack<typename Row::Value>;
  bool done = false;
  ((!done && packs <= Tile::most_packs && (launch_row_tile<Row, Tile>(row, stream), done = true)), ...);
}

// One input: up to 128 KiB. Measured on an H200: two packs a thread up to 16 KiB, then eight.
using RowTiles = std::tuple<RowTile<128, 4, 1, 12>, RowTile<128, 8, 1, 12>, RowTile<128, 8, 2, 12>,
                            RowTile<128, 16, 2, 12>, RowTile<128, 32, 2, 12>, RowTile<512, 0, 2, 4>,
                            RowTile<256, 0, 8, 4>, RowTile<512, 0, 8, 2>, RowTile<1024, 0, 8, 1>>;
inline constexpr int64_t kMostRowBytes = 16 * kMostRowPacks<RowTiles>;
static_assert(kMostRowBytes == 128 * 1024);

// Two inputs: up to 64 KiB.
using RowTiles2 =
    std::tuple<RowTile<128, 4, 1, 12>, RowTile<128, 8, 1, 12>, RowTile<128, 16, 1, 12>, RowTile<128, 32, 1, 12>,
               RowTile<128, 32, 2, 8>, RowTile<512, 0, 2, 3>, RowTile<512, 0, 4, 2>, RowTile<1024, 0, 4, 1>>;
inline constexpr int64_t kMostRowBytes2 = 16 * kMostRowPacks<RowTiles2>;
static_assert(kMostRowBytes2 == 64 * 1024);

}  // namespace warpsmith
