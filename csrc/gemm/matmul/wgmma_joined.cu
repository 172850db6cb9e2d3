// Few rows by wgmma, where slices of k are added up in the launch that multiplies them.
//   Against `wgmma_peak`: no second kernel waits for the slowest tile and reads all partial sums; the last block of a tile to
//   come adds them up, in their order (gemm/wgmma_join.cuh). Clusters of two and four share the rows of a, which all tiles
//   read: what each brings through L2 are weights.
//   Occupancy: one block of 2 warpgroups in up to 227 KB. Bound: memory, and what a multiprocessor gets from L2.
#include "gemm/matmul/wgmma_menu.h"
#include "host/registry.h"
#include "host/ticket_range.h"

namespace warpsmith {
namespace {

const char* takes(const GemmArgs& p) {
  if (const char* reason = takes_by_menu(p)) return reason;
  if (const char* reason = needs_free_order(p)) return reason;
  return p.a.order == Order::rows ? nullptr : "needs a row-major";
}

bool suits(const GemmArgs& p) { return choose_joined(wgmma_problem(p)).clocks < choose_wgmma(p).clocks; }

// Whether there is a counter for each tile, and for the call: sums that stay in f32 are left to a second kernel.
bool may_join(const GemmArgs& p, const WgmmaChoice& choice) {
  const WgmmaTile& tile = kJoinedMenu[choice.tile];
  const int64_t tiles = ceil_div(p.n, int64_t{tile.bm} * tile.cluster) * tile.cluster * ceil_div(p.m, int64_t{tile.bn});
  return choice.slices > 1 && !p.wide && tiles * p.batch <= kJoinTickets;
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  WgmmaChoice choice = told_or(choose_joined(wgmma_problem(p)), p, kJoinedMenu);
  if (may_join(p, choice)) choice.range = ticket_range(stream, kJoinRanges);
  launch_by_menu<kJoinedMenu>(p, choice, stream);
}

const Register<GemmArgs> registered{"wgmma_joined", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
