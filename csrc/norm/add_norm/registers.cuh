// The kernel behind `registers`: x and residual are read once, h stays in registers until its row's sums are known.
#pragma once

#include <tuple>

#include "device/start_early.h"
#include "norm/add_norm/row.cuh"

namespace warpsmith {

// threads of a block (at most) | threads that share a row, 0: the whole block, cut to what the row needs |
// packs of a row that each of them holds | blocks per multiprocessor that the registers must allow |
// every thread of every block holds all of its packs, so that nothing is left to ask at run time
template <int threads_, int lanes_, int packs_, int min_blocks_, bool exact_ = false>
struct AddNormTile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr bool exact = exact_;
  static constexpr int most_packs = (lanes > 0 ? lanes : threads) * packs;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
  static_assert(!exact || lanes == 0, "rows that share a block may end before it does");
  using Exact = AddNormTile<threads_, lanes_, packs_, min_blocks_, true>;
};

// Over everyone who shares the row. Two calls in a row need two buffers.
template <class Tile>
__device__ __forceinline__ float row_sum(float value, float (&partial)[kWarp]) {
  if constexpr (Tile::lanes > 0) {
    return warp_reduce<Tile::lanes>(value);
  } else if constexpr (Tile::exact) {
    constexpr int kWarps = Tile::threads / kWarp;
    value = warp_reduce(value);
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
    __syncthreads();
    return warp_reduce<kWarps>(partial[threadIdx.x % kWarps]);
  } else {
    return block_sum(value, partial);
  }
}

template <class Rows, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks) add_norm_registers_kernel(const Rows v) {
  start_early();
  using T = typename Rows::T;
  using R = typename Rows::R;
  constexpr int kWidth = Rows::kWidth, kPacks = Tile::packs;
  constexpr bool kShared = Tile::lanes > 0;
  __shared__ float partial[2][kWarp];
  const int lanes = kShared ? Tile::lanes : Tile::exact ? Tile::threads : blockDim.x;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int group = kShared ? threadIdx.x / lanes : 0;
  const int64_t row = int64_t{blockIdx.x} * Tile::rows_per_block + group;
  const int cols = row < v.rows ? static_cast<int>(v.cols) : 0;
  const auto col = [&](int i) { return (i * lanes + lane) * kWidth; };
  const auto inside = [&](int i) { return Tile::exact || col(i) < cols; };

  // load
  const uint64_t policy = v.load_policy();
  Vec<T, kWidth> x[kPacks];
  Vec<R, kWidth> h[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    x[i] = {};
    h[i] = {};
    if (inside(i)) {
      load_once(x[i], v.x_row(row) + col(i), policy);
      if (v.residual != nullptr) load_once(h[i], v.residual_row(row) + col(i), policy);
    }
  }

  // add
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (inside(i)) {
      h[i] = v.add(x[i], h[i], row, col(i));
      if (v.h != nullptr) store<Cache::streaming>(v.h_row(row) + col(i), h[i]);
      sum = first_sum<Rows>(sum, h[i]);
    }
    keep_packed(h[i]);
  }
  sum = row_sum<Tile>(sum, partial[0]);

  // sum
  RowStatistics statistics{};
  if constexpr (Rows::kLayer) {
    statistics.mean = sum * (v.inverse_count / kMeanShare);
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (inside(i)) sum = second_sum(sum, h[i], statistics.mean);
      keep_packed(h[i]);
    }
    sum = row_sum<Tile>(sum, partial[1]);
  }
  statistics.rstd = reciprocal_rms(sum, v.inverse_count, v.eps);

  // normalise
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (inside(i)) store<Cache::streaming>(v.y_row(row) + col(i), normalise(v, h[i], statistics, col(i)));
  }
}

// The first tile that holds the row is taken. Fewer of them serve the rarer dtypes.
using AddNormHalfTiles = std::tuple<AddNormTile<128, 4, 1, 12>, AddNormTile<128, 8, 2, 12>, AddNormTile<128, 16, 2, 12>,
                                    AddNormTile<128, 32, 2, 12>, AddNormTile<64, 0, 2, 24>, AddNormTile<128, 0, 2, 12>,
                                    AddNormTile<256, 0, 2, 6>, AddNormTile<512, 0, 2, 3>, AddNormTile<512, 0, 4, 2>,
                                    AddNormTile<1024, 0, 4, 1>>;
using AddNormFloatTiles = std::tuple<AddNormTile<128, 4, 1, 12>, AddNormTile<128, 8, 2, 12>,
                                     AddNormTile<128, 16, 2, 12>, AddNormTile<128, 32, 2, 12>,
                                     AddNormTile<64, 0, 2, 24>, AddNormTile<128, 0, 2, 12>, AddNormTile<256, 0, 2, 6>,
                                     AddNormTile<512, 0, 2, 3>, AddNormTile<512, 0, 4, 2>, AddNormTile<1024, 0, 4, 1>>;
using AddNormFewTiles = std::tuple<AddNormTile<128, 8, 1, 12>, AddNormTile<128, 32, 2, 10>, AddNormTile<128, 0, 2, 10>,
                                   AddNormTile<512, 0, 2, 2>, AddNormTile<512, 0, 4, 2>, AddNormTile<1024, 0, 4, 1>>;
template <class Rows>
using AddNormTilesFor =
    std::conditional_t<!Rows::kCommon, AddNormFewTiles,
                       std::conditional_t<sizeof(typename Rows::T) == 2, AddNormHalfTiles, AddNormFloatTiles>>;

template <class Tile, class Rows>
void launch_registers_tile(const Rows& rows, cudaStream_t stream) {
  const int64_t packs = rows.cols / Rows::kWidth;
  const unsigned threads = Tile::lanes > 0 ? Tile::threads : row_threads(packs, Tile::packs, Tile::threads);
  const unsigned grid = static_cast<unsigned>((rows.rows + Tile::rows_per_block - 1) / Tile::rows_per_block);
  const LaunchConfig config{.grid = grid, .block = threads, .early = true};
  if constexpr (Rows::kCommon && Tile::lanes == 0) {
    if (packs == Tile::most_packs) {
      return launch<&add_norm_registers_kernel<Rows, typename Tile::Exact>>(config, stream, rows);
    }
  }
  launch<&add_norm_registers_kernel<Rows, Tile>>(config, stream, rows);
}

template <class Rows, class... Tile>
void launch_registers_smallest(const Rows& rows, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && rows.cols / Rows::kWidth <= Tile::most_packs && (launch_registers_tile<Tile>(rows, stream), done = true)),
   ...);
}

template <class Tiles, class Rows>
void launch_registers(const Rows& rows, cudaStream_t stream) {
  launch_registers_smallest(rows, stream, Tiles{});
}

}  // namespace warpsmith
