// Which tile a convolution on the tensor cores is given.
#pragma once

#include <cstdint>

#include "host/launch.h"
#include "host/min_max.h"
#include "host/occupancy.h"
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

// What of its rate a multiprocessor reaches with one block of a tile, and with as many as it holds.
struct Conv1dRates {
  double alone, full;
};

// Fitted to times, but for the lone tiles. These are estimated, until they are timed, from the instructions of their loops
// beside those of the others: clocks of an H200 for a step, which is a tap and 64 channels,
//                   on tensor cores   f32: of a block, of two   16 bits
//   small                       256       1,080   1,350         720     890
//   lone small                  256         910   1,310         740   1,070
//   lone narrow                 128         680     900         550     850
//   tall                        512       1,820   2,060         960   1,380
//   lone tall                   256       1,010   1,370         800   1,210
// Steps follow one another, and most of each is waited for: half a tile takes more than half the time. It pays where
// blocks are fewer than multiprocessors, and the other half is done beside; two narrow blocks on one take what a small
// one does.
constexpr Conv1dRates rates_of(LargeConv1dTile) { return {.alone = 0.7, .full = 0.7}; }
constexpr Conv1dRates rates_of(TallConv1dTile) { return {.alone = 0.45, .full = 0.7}; }
constexpr Conv1dRates rates_of(SmallConv1dTile) { return {.alone = 0.28, .full = 0.57}; }
constexpr Conv1dRates rates_of(LoneSmallConv1dTile) { return {.alone = 0.3, .full = 0.4}; }
constexpr Conv1dRates rates_of(LoneNarrowConv1dTile) { return {.alone = 0.2, .full = 0.28}; }
constexpr Conv1dRates rates_of(LoneTallConv1dTile) { return {.alone = 0.27, .full = 0.38}; }

// An estimate; compared with each other, they choose the tile. `p`: of in_tiles.
template <class Tile>
double tile_time(const Conv1dProduct& p, int sm_count) {
  constexpr double kNever = 1e300;
  if (p.block_rows == 0 || p.block_positions == 0) return kNever;  // the tile does not hold the units
  const int64_t each = ceil_div(p.tiles(), sm_count);              // blocks of the busiest multiprocessor
  const Conv1dRates rates = rates_of(Tile());
  return static_cast<double>(each * Tile::bm * Tile::bn) /
         std::min(rates.full, rates.alone * static_cast<double>(each));
}

// Calls launch.template operator()<Tile>(product) for that of `Tiles` which should be fastest, of several the first.
// One of them at least holds the units.
template <class... Tiles, class Launch>
void with_best_tile(const Conv1dProduct& p, int64_t row_unit, int64_t position_unit, int sm_count, Launch&& launch) {
  const double times[] = {tile_time<Tiles>(in_tiles<Tiles>(p, row_unit, position_unit), sm_count)...};
  int best = 0, at = 0;
  for (int i = 1; i < static_cast<int>(sizeof...(Tiles)); ++i) {
    if (times[i] < times[best]) best = i;
  }
  const auto launch_best = [&]<class Tile>() {
    if (at++ == best) launch.template operator()<Tile>(in_tiles<Tile>(p, row_unit, position_unit));
  };
  (launch_best.template operator()<Tiles>(), ...);
}

// Shared memory of which a multiprocessor has as much for `each` blocks, and not for one more.
inline int memory_of_share(int64_t each) {
  constexpr int kReserved = 1 << 10;  // of each block, and by that much a multiprocessor has more than a block may have
  return static_cast<int>((block_smem_limit() + kReserved) / (each + 1));
}

// A grid that starts early takes its places as the one before it ends, and those that are free first may get all that
// fit there, while others stay idle. Lone blocks ask for so much memory that they spread.
template <class Tile>
LaunchConfig conv1d_config(const Conv1dProduct& p, int sm_count) {
  const int needed = Conv1dMemory<Tile>::bytes(p.taps);
  return {.grid = static_cast<unsigned>(p.tiles()),
          .block = Share<Tile>::threads,
          .dynamic_smem = Tile::lone ? max_of(needed, memory_of_share(ceil_div(p.tiles(), sm_count))) : needed,
          .early = true};
}

// The convolution alone.
template <class T>
void convolve(const Conv1dProduct& p, const void* bias, void* y, int sm_count, cudaStream_t stream) {
  const auto start = [&]<class Tile>(const Conv1dProduct& product) {
    warpsmith::launch<&conv1d_mma_kernel<T, Tile>>(conv1d_config<Tile>(product, sm_count), stream, product,
                                                   static_cast<const T*>(bias), static_cast<T*>(y));
  };
  with_best_tile<LargeConv1dTile, TallConv1dTile, SmallConv1dTile, LoneSmallConv1dTile, LoneNarrowConv1dTile>(
      p, 1, 1, sm_count, start);
}

}  // namespace warpsmith
