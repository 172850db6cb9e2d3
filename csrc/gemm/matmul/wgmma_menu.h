// What the rungs by a menu of tiles share: which calls they take, what a benchmark tells them, the launch of the tile that was
// chosen, and the sum of its slices.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "gemm/sum_splits_early.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_plan.h"
#include "host/min_max.h"

namespace warpsmith {

inline const char* takes_by_menu(const GemmArgs& p) {
  if (const char* reason = needs_wgmma(p)) return reason;
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_f32_accumulator(p)) return reason;
  if (const char* reason = needs_lines_for_maps(p)) return reason;
  return needs_tiles_in_grid(p);
}

// Where WARPSMITH_WGMMA_TILE says "<tile of the menu>/<slices>", that takes the place of `chosen` wherever it is possible: for
// benchmarks/wgmma_costs.py, which times them all.
template <int tiles>
WgmmaChoice told_or(const WgmmaChoice& chosen, const GemmArgs& p, const WgmmaTile (&menu)[tiles]) {
  int tile = 0, wanted = 0;
  const char* told = std::getenv("WARPSMITH_WGMMA_TILE");
  const bool forced = told != nullptr && std::sscanf(told, "%d/%d", &tile, &wanted) == 2 && tile >= 0 && tile < tiles &&
                      wanted > 0 && (!menu[tile].swapped || p.a.order == Order::rows);
  if (!forced) return chosen;
  return cost_wgmma(wgmma_problem(p), menu[tile], tile, std::min<int64_t>(wanted, most_splits(p)));
}

// By the tile of `menu`; a second kernel adds up slices that blocks do not join.
template <const auto& menu>
void launch_by_menu(const GemmArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  constexpr size_t kTiles = sizeof(menu) / sizeof(WgmmaTile);
  const bool known = [&]<size_t... tile>(std::index_sequence<tile...>) {
    return ((choice.tile == tile && (launch_wgmma_tile<menu[tile]>(p, choice, stream), true)) || ...);
  }(std::make_index_sequence<kTiles>());
  if (!known) broken_promise("a tile of the menu");
  if (choice.slices == 1 || choice.range >= 0) return;
  if (p.wide) return sum_splits_early<float>(p, choice.slices, stream);
  p.dtype == Dtype::f16 ? sum_splits_early<f16>(p, choice.slices, stream)
                        : sum_splits_early<bf16>(p, choice.slices, stream);
}

}  // namespace warpsmith
