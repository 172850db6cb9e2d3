// Which tile a convolution on the tensor cores is given.
#pragma once

#include <cstdint>

#include "host/launch.h"
#include "host/min_max.h"
#include "vision/conv1d_group_norm/arrange.h"
#include "vision/conv1d_group_norm/conv1d_mma.cuh"

namespace warpsmith {

// The operands of a convolution with `rows` channels in its result, of `channels`.
inline Conv1dProduct conv1d_product(const Conv1dShape& s, const void* weights, const void* signals, int64_t rows,
                                    int64_t channels, int before) {
  return {.weights = weights,
          .signals = signals,
          .rows = rows,
          .positions = s.positions(),
          .pitch = line_pitch(channels),
          .length = static_cast<int>(s.length),
          .taps = s.taps,
          .before = before,
          .by_length = FastDivide(s.length),
          .block_rows = 0,
          .block_positions = 0,
          .tiles_m = 0};
}

// Whole multiples of `row_unit` rows and of `position_unit` positions to a block.
template <class Tile>
Conv1dProduct in_tiles(Conv1dProduct p, int64_t row_unit, int64_t position_unit) {
  p.block_rows = static_cast<int>(Tile::bm / row_unit * row_unit);
  p.block_positions = static_cast<int>(Tile::bn / position_unit * position_unit);
  p.tiles_m = p.block_rows > 0 ? ceil_div(p.rows, p.block_rows) : 0;
  return p;
}

// An estimate; compared with each other, they choose the tile. `alone`: the part of its rate that a multiprocessor
// reaches with one block, `full` with as many as it holds.
template <class Tile>
double tile_time(const Conv1dProduct& p, int sm_count, double alone, double full) {
  const int64_t each = ceil_div(p.tiles(), sm_count);  // blocks of the busiest multiprocessor
  return static_cast<double>(each * Tile::bm * Tile::bn) / std::min(full, alone * static_cast<double>(each));
}

// Calls launch.template operator()<Tile>(product) for the tile that should be fastest, of those that hold the units.
template <class Launch>
void with_best_tile(const Conv1dProduct& p, int64_t row_unit, int64_t position_unit, int sm_count, Launch&& launch) {
  const Conv1dProduct large = in_tiles<LargeConv1dTile>(p, row_unit, position_unit),
                      tall = in_tiles<TallConv1dTile>(p, row_unit, position_unit),
                      small = in_tiles<SmallConv1dTile>(p, row_unit, position_unit);
  const double never = 1e300, large_time = tile_time<LargeConv1dTile>(large, sm_count, 0.7, 0.7);
  const double tall_time = tall.block_positions > 0 ? tile_time<TallConv1dTile>(tall, sm_count, 0.45, 0.7) : never;
  const bool small_holds = small.block_rows > 0 && small.block_positions > 0;
  const double small_time = small_holds ? tile_time<SmallConv1dTile>(small, sm_count, 0.28, 0.57) : never;
  if (small_time < tall_time && small_time < large_time) return launch.template operator()<SmallConv1dTile>(small);
  if (tall_time < large_time) return launch.template operator()<TallConv1dTile>(tall);
  launch.template operator()<LargeConv1dTile>(large);
}

template <class Tile>
LaunchConfig conv1d_config(const Conv1dProduct& p) {
  return {.grid = static_cast<unsigned>(p.tiles()),
          .block = Share<Tile>::threads,
          .dynamic_smem = Conv1dMemory<Tile>::bytes(p.taps),
          .early = true};
}

// The convolution alone.
template <class T>
void convolve(const Conv1dProduct& p, const void* bias, void* y, int sm_count, cudaStream_t stream) {
  with_best_tile(p, 1, 1, sm_count, [&]<class Tile>(const Conv1dProduct& product) {
    warpsmith::launch<&conv1d_mma_kernel<T, Tile>>(conv1d_config<Tile>(product), stream, product,
                                                   static_cast<const T*>(bias), static_cast<T*>(y));
  });
}

}  // namespace warpsmith
