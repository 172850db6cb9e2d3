// Matrix product by wgmma for all four layouts, batches and epilogues, with a tile of a menu: what sm_90 can do.
//   Against `wgmma_staged` and `wgmma_pingpong`: the tile, whether warpgroups share one or take turns, the cluster and the
//   slices of k are chosen by a model of clocks (gemm/wgmma_plan.h); for few rows operands change places, so that those of
//   the weights are rows of the tile, few enough that all multiprocessors have one with all of k; the kernel takes its
//   place while the one before ends. Sums of slices go to the workspace, and a second kernel adds them up in order.
//   Occupancy: one block of 3 warpgroups in up to 227 KB.
//   Bound: large products the power, few rows memory.
#include "gemm/sum_splits_early.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_menu.h"
#include "gemm/wgmma_plan.h"
#include "host/min_max.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_wgmma(p)) return reason;
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_f32_accumulator(p)) return reason;
  if (const char* reason = needs_lines_for_maps(p)) return reason;
  return needs_tiles_in_grid(p);
}

WgmmaChoice choice_for(const GemmArgs& p) {
  const ToldTile told = told_tile(kWgmmaTiles);
  if (told.slices == 0 || (kWgmmaMenu[told.tile].swapped && p.a.order != Order::rows)) return choose_wgmma(p);
  const int64_t slices = std::min<int64_t>(told.slices, most_splits(p));
  return cost_wgmma(wgmma_problem(p), kWgmmaMenu[told.tile], told.tile, slices);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  const WgmmaChoice choice = choice_for(p);
  launch_tile_of<kWgmmaMenu>(choice.tile, [&]<WgmmaTile tile>() { launch_wgmma_tile<tile>(p, choice, stream); });
  if (choice.slices == 1) return;
  if (p.wide) return sum_splits_early<float>(p, choice.slices, stream);
  p.dtype == Dtype::f16 ? sum_splits_early<f16>(p, choice.slices, stream)
                        : sum_splits_early<bf16>(p, choice.slices, stream);
}

const Register<GemmArgs> registered{"wgmma_peak", /*min_sm=*/90,          takes,
                                    launch,       always_suits<GemmArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
