// Few rows by wgmma, where slices of k are added up in the launch that multiplies them.
//   Against `wgmma_peak`: no second kernel waits for the slowest tile and reads all partial sums; the last block of a tile to
//   come adds them up, in their order (gemm/wgmma_join.cuh). Clusters of two and four share the rows of a, which all tiles
//   read: what each brings through L2 are weights.
//   Occupancy: one block of 2 warpgroups in up to 227 KB. Bound: memory, and what a multiprocessor gets from L2.
#include <cstdio>
#include <cstdlib>

#include "gemm/sum_splits_early.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_plan.h"
#include "host/min_max.h"
#include "host/registry.h"
#include "host/ticket_range.h"

namespace warpsmith {
namespace {

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_wgmma(p)) return reason;
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_f32_accumulator(p)) return reason;
  if (const char* reason = needs_free_order(p)) return reason;
  if (p.a.order != Order::rows) return "needs a row-major";
  if (const char* reason = needs_lines_for_maps(p)) return reason;
  return needs_tiles_in_grid(p);
}

bool suits(const GemmArgs& p) { return choose_joined(wgmma_problem(p)).clocks < choose_wgmma(p).clocks; }

// As in `wgmma_peak`, of this menu.
WgmmaChoice choice_for(const GemmArgs& p) {
  int tile = 0, wanted = 0;
  const char* told = std::getenv("WARPSMITH_WGMMA_TILE");
  const bool forced = told != nullptr && std::sscanf(told, "%d/%d", &tile, &wanted) == 2 && tile >= 0 &&
                      tile < kJoinedTiles && wanted > 0;
  if (!forced) return choose_joined(wgmma_problem(p));
  return cost_wgmma(wgmma_problem(p), kJoinedMenu[tile], tile, std::min<int64_t>(wanted, most_splits(p)));
}

// Whether there is a counter for each tile, and for the call: sums that stay in f32 are left to a second kernel.
bool may_join(const GemmArgs& p, const WgmmaChoice& choice) {
  const WgmmaTile& tile = kJoinedMenu[choice.tile];
  const int64_t tiles = ceil_div(p.n, int64_t{tile.bm} * tile.cluster) * tile.cluster * ceil_div(p.m, int64_t{tile.bn});
  return choice.slices > 1 && !p.wide && tiles * p.batch <= kJoinTickets;
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  constexpr void (*kLaunches[])(const GemmArgs&, const WgmmaChoice&, cudaStream_t) = {
      launch_wgmma_tile<kJoinedMenu[0]>, launch_wgmma_tile<kJoinedMenu[1]>, launch_wgmma_tile<kJoinedMenu[2]>,
      launch_wgmma_tile<kJoinedMenu[3]>};
  static_assert(sizeof(kLaunches) / sizeof(*kLaunches) == kJoinedTiles, "one for each tile of the menu");
  WgmmaChoice choice = choice_for(p);
  if (may_join(p, choice)) choice.range = ticket_range(stream, kJoinRanges);
  kLaunches[choice.tile](p, choice, stream);
  if (choice.slices == 1 || choice.range >= 0) return;
  if (p.wide) return sum_splits_early<float>(p, choice.slices, stream);
  p.dtype == Dtype::f16 ? sum_splits_early<f16>(p, choice.slices, stream)
                        : sum_splits_early<bf16>(p, choice.slices, stream);
}

const Register<GemmArgs> registered{"wgmma_joined", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
