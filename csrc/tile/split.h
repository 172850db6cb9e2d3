// Split-K: where the tiles of a product do not fill the GPU, several blocks share a tile, each with a slice of k. They leave
// partial sums in a workspace, which a second kernel adds up in order: the result is the same on every run.
#pragma once

#include <cstdint>
#include <limits>

#include "host/ceil_div.h"
#include "host/min_max.h"
#include "tile/shared_limits.h"

namespace warpsmith {

// The slices of k: `depth` values each, the last one what is left. One slice: no partial sums, no second kernel.
struct Split {
  int count;
  int64_t depth;  // a multiple of the tile's bk, unless there is one slice only
};

// A kernel's tile, and what it is worth. Costs are counted in multiplications on one multiprocessor.
struct TileCost {
  int bm, bn, bk;
  int blocks;   // of this tile that a multiprocessor holds
  float alone;  // part of the peak rate that a block reaches on its own,
  float full;   // and that `blocks` of them reach together
  float fill;   // a block's time before its first product and after its last, in values of k
  float rate;   // multiplications of a multiprocessor in a microsecond at the peak
  // Whether the blocks of a multiprocessor end together, so that it is given as many again while others have none.
  bool together = false;
};

// The cost of the same tile on a multiprocessor that holds no more than `blocks` of it: what so many reach together where
// there is room for more is all they reach.
constexpr TileCost with_fewer(TileCost cost, int blocks) {
  if (blocks >= cost.blocks) return cost;
  const float others = static_cast<float>(blocks - 1) / static_cast<float>(cost.blocks - 1);
  cost.full = cost.alone + (cost.full - cost.alone) * others;
  cost.blocks = blocks;
  return cost;
}

struct TilePlan {
  Split split;
  float cost;
};

// What the choice of a split follows from.
struct SplitProblem {
  int64_t batch, m, n, k;
  int64_t most_splits;  // partial sums that there is room for
  int sm_count;
};

namespace detail {

inline float cost_of(const SplitProblem& p, const TileCost& tile, int64_t tiles, const Split& split) {
  constexpr float kSecondKernel = 2.0f;                        // microseconds
  constexpr float kPartialsPerMicrosecond = 4e5f;              // written and read back, mostly in L2
  int64_t rounds = ceil_div(tiles * split.count, p.sm_count);  // blocks of the busiest multiprocessor
  if (tile.together && rounds > tile.blocks) rounds = ceil_div(rounds, tile.blocks) * tile.blocks;
  const float others = static_cast<float>(std::min<int64_t>(rounds, tile.blocks)) - 1.0f;
  const float gained = tile.blocks > 1 ? others / static_cast<float>(tile.blocks - 1) : 1.0f;
  const float efficiency = tile.alone + (tile.full - tile.alone) * gained;
  const float depth = static_cast<float>(split.depth) + tile.fill;
  float cost = static_cast<float>(rounds) * depth * static_cast<float>(tile.bm * tile.bn) / efficiency;
  if (split.count > 1) {
    const float partials = static_cast<float>(split.count) * static_cast<float>(p.batch * p.m * p.n);
    cost += tile.rate * (kSecondKernel + partials / kPartialsPerMicrosecond);
  }
  return cost;
}

}  // namespace detail

// The split that finishes first. `plan_tile(...).cost` also compares tiles of different sizes.
inline TilePlan plan_tile(const SplitProblem& p, const TileCost& tile) {
  const int64_t tiles = ceil_div(p.m, tile.bm) * ceil_div(p.n, tile.bn) * p.batch;
  TilePlan best{.split = {1, p.k}};
  best.cost = detail::cost_of(p, tile, tiles, best.split);
  // More slices than fill the GPU once more only cost.
  const int64_t most = std::min(p.most_splits, ceil_div(2 * int64_t{tile.blocks} * p.sm_count, tiles));
  for (int64_t wanted = 2; wanted <= most; ++wanted) {
    const int64_t depth = ceil_div(ceil_div(p.k, wanted), tile.bk) * tile.bk;
    const Split split{static_cast<int>(ceil_div(p.k, depth)), depth};
    if (split.count < 2) continue;
    const float cost = detail::cost_of(p, tile, tiles, split);
    if (cost < best.cost) best = {split, cost};
  }
  return best;
}

// Of several tiles, or the `first` of them, the index of the one that finishes first, with its split.
template <int n>
int best_tile(const SplitProblem& p, const TileCost (&tiles)[n], Split& split, int first = n) {
  int best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < first; ++i) {
    const TilePlan plan = plan_tile(p, tiles[i]);
    if (plan.cost >= least) continue;
    best = i;
    least = plan.cost;
    split = plan.split;
  }
  return best;
}

}  // namespace warpsmith
