// How skinny_ring.cuh deals rows of weights out to blocks for 9 to 16 vectors. In 16 bits: whole tiles by turns, or an
// even share for each. Turns stream neighbouring rows and win where their last wave is well filled or one of many; even
// shares win where it is neither, by more since blocks start early. In f32: tiles by turns, of the height that suits.
#pragma once

#include "gemm/skinny.h"
#include "host/ceil_div.h"
#include "host/min_max.h"

namespace warpsmith {

enum class RingDeal { tiles, tall_tiles, even, tall_even };

inline constexpr int kShareGranule = 16;  // rows that even shares are made of, those of an mma
// Rows of a tile at most, where shares are even. Short tiles by more warps keep as much under way with few rows as tall
// ones with many.
inline constexpr int kEvenRows = 48, kTallEvenRows = 112;

// Every tile reads all vectors, from L2: as few tiles as keep the GPU busy.
constexpr RingDeal whole_tiles(int64_t m, int64_t blocks) {
  return m >= 2 * kRingRows * blocks ? RingDeal::tall_tiles : RingDeal::tiles;
}

// Whichever is done first. Time is counted in rows of weights: those that a block streams while all of them do.
constexpr RingDeal ring_deal(int64_t m, int64_t row_bytes, int64_t blocks) {
  constexpr double kLeastWave = 0.8;               // of a wave's time: few blocks alone can't use all of DRAM's rate
  constexpr int64_t kManyWaves = 8;                // blocks end one by one: what the last wave lacks hardly shows
  constexpr int64_t kPassing = int64_t{64} << 20;  // bytes of weights that L2 does not keep from call to call

  const RingDeal whole = whole_tiles(m, blocks);
  const int rows = whole == RingDeal::tall_tiles ? 2 * kRingRows : kRingRows;
  const int64_t tiles = ceil_div(m, rows), waves = tiles / blocks, last = tiles % blocks;
  if (waves == 0 || waves >= kManyWaves) return whole;
  const double filled = static_cast<double>(last) / static_cast<double>(blocks);
  const double last_wave = last > 0 ? std::max(filled, kLeastWave) : 0.0;
  const double by_turns = rows * (static_cast<double>(waves) + last_wave);

  const int64_t share = ceil_div(ceil_div(m, kShareGranule), blocks) * kShareGranule;
  if (by_turns <= static_cast<double>(share)) return whole;
  return share > kEvenRows && m * row_bytes > kPassing ? RingDeal::tall_even : RingDeal::even;
}

// Rows of a tile of f32: fewest in all of a block's turns, as multiply-adds are not saved where a last wave is not filled.
// Ties go to the tallest tile, which measured fastest.
constexpr int float_ring_rows(int64_t m, int64_t blocks) {
  constexpr double kShort = 1.1;  // of the time: a lane of a tile of kRingRows reads more for each multiply-add
  const auto turns = [&](int rows) {
    return static_cast<double>(ceil_div(ceil_div(m, rows), blocks) * rows) * (rows == kRingRows ? kShort : 1.0);
  };
  int best = kRingRows;
  for (const int rows : {64, 56, 48}) {
    if (turns(rows) <= turns(best)) best = rows;
  }
  return best;
}

// What these choose on 132 multiprocessors.
static_assert(float_ring_rows(4096, 132) == 32 && float_ring_rows(6144, 132) == 48 && float_ring_rows(8192, 132) == 64);
static_assert(float_ring_rows(14336, 132) == 56 && float_ring_rows(128256, 132) == 48);
static_assert(ring_deal(4096, 2 * 4096, 132) == RingDeal::tiles && ring_deal(4096, 2 * 14336, 132) == RingDeal::tiles);
static_assert(ring_deal(128256, 2 * 4096, 132) == RingDeal::tall_tiles);
static_assert(ring_deal(6144, 2 * 4096, 132) == RingDeal::even);
static_assert(ring_deal(14336, 2 * 4096, 132) == RingDeal::tall_even &&
              ring_deal(28672, 2 * 8192, 132) == RingDeal::tall_even);

}  // namespace warpsmith
