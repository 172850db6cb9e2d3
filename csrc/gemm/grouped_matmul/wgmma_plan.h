// Which tile multiplies groups by wgmma: the cheapest by the model of clocks of gemm/wgmma_plan.h.
// kernels/warpsmith/gemm/grouped_plan.py computes the same, in whole numbers.
#pragma once

#include <cstdint>

#include "gemm/grouped_matmul/wgmma_tiles.h"
#include "gemm/wgmma_plan.h"
#include "host/min_max.h"

namespace warpsmith {

// What the choice follows from: the ends of the groups are not known.
struct GroupedSizes {
  int64_t groups, m, n, k;
  bool along_k;
  int size;  // bytes a value
  int sm_count;
};

struct GroupedChoice {
  int tile;
  int64_t clocks;
};

// Of groups whose ends lie anywhere half a tile is lost in each; groups along k are taken for equally long. What waits for
// memory still does better with less to multiply.
inline int64_t cost_grouped(const GroupedSizes& p, const WgmmaTile& t) {
  constexpr int64_t kShareOfLess = 16;
  WgmmaProblem sizes{.batch = 1,
                     .m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .size = p.size,
                     .a_along_k = true,
                     .swaps = false,
                     .most_slices = 1,
                     .sm_count = p.sm_count};
  int64_t matrices = std::min(p.groups, p.m);
  if (p.along_k) {
    sizes.batch = p.groups;
    sizes.k = std::max<int64_t>(p.k / p.groups, 1);
    matrices = 0;
  } else {
    const int64_t rows = t.swapped ? t.bn : t.bm;
    sizes.m = rows * std::min(ceil_div(p.m, rows) + p.groups / 2, p.m);
  }
  const int64_t moved = (matrices * p.n * p.k + p.m * p.k) * p.size / wgmma_costs::kMemoryRate + wgmma_costs::kOnce;
  const int64_t multiplied = cost_wgmma(sizes, t, 0, 1).clocks;
  return std::max(multiplied, moved) + multiplied / kShareOfLess;
}

// The cheapest of the first `count` tiles of a menu, or what told_tile() says.
inline GroupedChoice choose_grouped(const GroupedSizes& p, const WgmmaTile* menu, int count) {
  const ToldTile told = told_tile(count);
  if (told.slices > 0 && !(p.along_k && menu[told.tile].swapped)) return {told.tile, cost_grouped(p, menu[told.tile])};
  GroupedChoice best{0, cost_grouped(p, menu[0])};
  for (int tile = 1; tile < count; ++tile) {
    if (p.along_k && menu[tile].swapped) continue;  // lines of few columns along k alone
    const int64_t clocks = cost_grouped(p, menu[tile]);
    if (clocks < best.clocks) best = {tile, clocks};
  }
  return best;
}

inline GroupedChoice choose_grouped(const GroupedSizes& p) { return choose_grouped(p, kGroupedMenu, kGroupedTiles); }

}  // namespace warpsmith
