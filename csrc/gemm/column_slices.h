// How many slices of k the kernels take that stream weights column by column. Time is counted in values of k, each of which
// is a column of a block's tile; a second launch adds the slices up. A fixed function of the sizes and the GPU, and so is
// the order of every addition.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gemm/skinny.h"
#include "host/ceil_div.h"

namespace warpsmith {

// As many slices, at most `most`, as cost(slices) is least for; the fewest of those that cost the same.
template <class Cost>
constexpr int cheapest_slices(int64_t most, Cost&& cost) {
  constexpr int64_t kMost = 64;  // what the second launch adds up
  int best = 1;
  int64_t least = cost(int64_t{1});
  for (int64_t slices = 2; slices <= std::min(most, kMost); ++slices) {
    const int64_t one = cost(slices);
    if (one >= least) continue;
    best = static_cast<int>(slices);
    least = one;
  }
  return best;
}

// For blocks that come and go, `held` of them at a time, `blocks` a slice: slices make whole waves.
constexpr int slices_in_waves(int64_t blocks, int64_t held, int64_t k) {
  constexpr int64_t kLeast = 64;         // values of k in a slice
  constexpr int64_t kStart = 24;         // that pass before a block's first sum and after its last
  constexpr int64_t kSecondLaunch = 40;  // and while the second launch adds up
  return cheapest_slices(k / kLeast, [&](int64_t slices) {
    return ceil_div(blocks * slices, held) * (ceil_div(k, slices) + kStart) + (slices > 1 ? kSecondLaunch : 0);
  });
}

// Rows of weights of a tile of skinny_ring_columns.cuh, whose values have 16 bits.
inline constexpr int kColumnsTile = kRingRowBytes / 2;

// For its blocks, which stay: a slice has its share of them, and they walk over its tiles by turns. Slices fill the last
// turn. That takes streaming to be bound by multiprocessors; on an H200 DRAM was at its rate with half of them, and one
// slice was faster wherever tiles come to that many.
constexpr int skinny_columns_slices(int64_t m, int64_t k, int vectors, int sm_count) {
  constexpr int64_t kLeast = 512;         // values of k in a slice: two steps for every warp
  constexpr int64_t kSecondLaunch = 512;  // that a multiprocessor streams meanwhile,
  constexpr int64_t kPartials = 32;       // and while so many partial sums are written to L2 and read back
  constexpr int64_t kManyTurns = 8;       // blocks end one by one: what the last turn lacks hardly shows
  const int64_t tiles = ceil_div(m, kColumnsTile);
  if (tiles >= kManyTurns * sm_count) return 1;
  return cheapest_slices(std::min<int64_t>(k / kLeast, sm_count), [&](int64_t slices) {
    const int64_t streaming = ceil_div(tiles, sm_count / slices) * ceil_div(k, slices);
    return slices == 1 ? streaming : streaming + kSecondLaunch + slices * vectors * m / (kPartials * sm_count);
  });
}

// What these choose on 132 multiprocessors.
static_assert(slices_in_waves(112, 3 * 132, 4096) == 7);  // 14336 rows in f32
static_assert(skinny_columns_slices(6144, 4096, 16, 132) == 4 && skinny_columns_slices(14336, 4096, 16, 132) == 4);
static_assert(skinny_columns_slices(28672, 4096, 16, 132) == 2 && skinny_columns_slices(128256, 4096, 16, 132) == 1);

}  // namespace warpsmith
