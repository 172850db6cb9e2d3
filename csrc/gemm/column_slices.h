// How the kernels that stream weights column by column share them out: how many slices of k they take, which a second
// launch adds up, and what becomes of a last turn. A fixed function of the sizes and the GPU, and so is the order of every
// addition.
#pragma once

#include <cstdint>

#include "gemm/skinny.h"
#include "host/ceil_div.h"
#include "host/min_max.h"

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

// For blocks that come and go, `held` of them at a time, `blocks` a slice: slices make whole waves. Time is counted in
// values of k, each of which is a column of a block's tile.
constexpr int slices_in_waves(int64_t blocks, int64_t held, int64_t k) {
  constexpr int64_t kLeast = 64;         // values of k in a slice
  constexpr int64_t kStart = 24;         // that pass before a block's first sum and after its last
  constexpr int64_t kSecondLaunch = 40;  // and while the second launch adds up
  return cheapest_slices(k / kLeast, [&](int64_t slices) {
    return ceil_div(blocks * slices, held) * (ceil_div(k, slices) + kStart) + (slices > 1 ? kSecondLaunch : 0);
  });
}

// Tiles of skinny_ring_columns.cuh, each 128 bytes wide.
constexpr int64_t skinny_columns_tiles(int64_t m, int value_bytes) { return ceil_div(m, kRingRowBytes / value_bytes); }

// As few slices as let tiles of skinny_ring_columns.cuh keep half of the multiprocessors streaming, which is what DRAM
// needs: more blocks read no faster, and partial sums cost their second launch. In f32, where multiply-adds take long too,
// two if that leaves a quarter less to a block in all of its turns.
constexpr int skinny_columns_slices(int64_t m, int64_t k, int value_bytes, int sm_count) {
  constexpr int64_t kLeast = 512;  // values of k in a slice: two steps for every warp
  const int64_t tiles = skinny_columns_tiles(m, value_bytes), half = std::max(1, sm_count / 2), most = k / kLeast;
  const int slices = slices_of_k(tiles, half, most);
  if (value_bytes == 2 || slices > 1 || most < 2) return slices;
  const int64_t turns = ceil_div(tiles, sm_count), turns_of_two = ceil_div(tiles, half);  // of half the time each
  return 2 * turns_of_two <= 3 * turns ? 2 : 1;
}

// Whether the tiles of the last turn are dealt out in parts. Few are left whole, as half of the multiprocessors keep DRAM
// busy; in f32 all of them, as a part of a tile takes as many multiply-adds.
constexpr bool skinny_columns_fill(int64_t m, int value_bytes, int slices, int sm_count) {
  return value_bytes == 2 && 2 * skinny_columns_tiles(m, value_bytes) * slices > sm_count;
}

// What these choose on 132 multiprocessors.
static_assert(slices_in_waves(112, 3 * 132, 4096) == 7);  // 14336 rows in f32
static_assert(skinny_columns_slices(4096, 4096, 2, 132) == 1 && skinny_columns_slices(1024, 4096, 2, 132) == 4);
static_assert(skinny_columns_slices(6144, 4096, 2, 132) == 1 && skinny_columns_slices(28672, 4096, 2, 132) == 1);
static_assert(skinny_columns_slices(6144, 4096, 4, 132) == 2 && skinny_columns_slices(14336, 4096, 4, 132) == 1);
static_assert(!skinny_columns_fill(4096, 2, 1, 132) && skinny_columns_fill(6144, 2, 1, 132));

}  // namespace warpsmith
