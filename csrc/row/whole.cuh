// Rows that fill their lanes exactly, each held by a part of a warp or by all of it: beside the kernel of
// row/registers.cuh, for the lengths that come up most.
//   Against that one: no pack is tested or padded, the compiler knows how many values there are, and weights are loaded
//   with the row, so that they arrive while its statistics are gathered. Bound: DRAM.
//
// `Row` is what row/registers.cuh describes, and
//
//     static constexpr bool kHoldsColumns<packs>;  // whether there are registers for the columns of so many packs
//
// and, where gather() counts what is valid,
//
//     Stats gather_whole<lanes, packs>(const uint4 (&x)[packs][kInputs]) const;  // of a row of lanes * packs packs
#pragma once

#include "row/registers.cuh"

namespace warpsmith {

template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads, detail::resident_blocks(Tile::shape))
    row_whole_kernel(const Row row) {
  start_early();
  constexpr RowTile tile = Tile::shape;
  static_assert(tile.lanes > 0 && tile.lanes <= kWarp, "statistics are gathered by shuffles alone");
  constexpr int kLanes = tile.lanes, kPacks = tile.packs, kWidth = kPack<typename Row::Value>;
  constexpr bool kEarly = tile.early && Row::template kHoldsColumns<kPacks>;
  const int lane = threadIdx.x % kLanes;
  const int64_t r = int64_t{blockIdx.x} * tile.rows_per_block() + threadIdx.x / kLanes;
  const auto column = [&](int i) { return (i * kLanes + lane) * kWidth; };

  // load
  const int64_t loaded = min(r, row.rows - 1);  // every lane takes part in the shuffles
  const uint64_t policy = row.load_policy();
  uint4 x[kPacks][Row::kInputs];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < Row::kInputs; ++k) {
      const auto* from = reinterpret_cast<const uint4*>(row.input(k, loaded)) + lane;
      x[i][k] = ptx::load_streaming(from + i * kLanes, policy);
    }
  }
  typename Row::Columns columns[kPacks];
  if constexpr (kEarly) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) columns[i].load_from(row, column(i));
  }

  // gather
  typename Row::Stats stats;
  if constexpr (requires { row.template gather_whole<kLanes, kPacks>(x); }) {
    stats = row.template gather_whole<kLanes, kPacks>(x);
  } else {
    stats = row.template gather<kLanes, kPacks>(x, kPacks);
  }
  const typename Row::Total total = row.total(stats);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < Row::kInputs; ++k) keep_packed(x[i][k], detail::unknown_zero(row));
  }

  // finish
  if (r >= row.rows) return;
  if (lane == 0) row.keep(r, total);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if constexpr (!kEarly) columns[i].load_from(row, column(i));
    row.finish(r, column(i), x[i], total, columns[i]);
  }
}

template <class Row, class Tile>
void launch_whole_tile(const Row& row, cudaStream_t stream) {
  constexpr RowTile tile = Tile::shape;
  const unsigned grid = static_cast<unsigned>((row.rows + tile.rows_per_block() - 1) / tile.rows_per_block());
  launch<&row_whole_kernel<Row, Tile>>({.grid = grid, .block = tile.threads, .early = true}, stream, row);
}

// Through the tile that the rows fill; false where there is none.
template <class Row, class Tiles>
bool launch_whole(const Row& row, cudaStream_t stream, Tiles tiles) {
  const int64_t packs = row.cols / kPack<typename Row::Value>;
  return with_first_tile(
      tiles, [packs]<class Tile>() { return packs == Tile::most_packs; },
      [&]<class Tile>() { launch_whole_tile<Row, Tile>(row, stream); });
}

}  // namespace warpsmith
