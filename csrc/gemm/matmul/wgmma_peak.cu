// Matrix product by wgmma for all four layouts, batches and epilogues, with a tile of a menu: what sm_90 can do.
//   Against `wgmma_staged` and `wgmma_pingpong`: the tile, whether warpgroups share one or take turns, the cluster and the
//   slices of k are chosen by a model of clocks (gemm/wgmma_plan.h); for few rows operands change places, so that those of
//   the weights are rows of the tile, few enough that all multiprocessors have one with all of k; the kernel takes its
//   place while the one before ends. Sums of slices go to the workspace, and a second kernel adds them up in order.
//   Occupancy: one block of 3 warpgroups in up to 227 KB.
//   Bound: large products the power, few rows memory.
#include "gemm/matmul/wgmma_menu.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  launch_by_menu<kWgmmaMenu>(p, told_or(choose_wgmma(p), p, kWgmmaMenu), stream);
}

const Register<GemmArgs> registered{"wgmma_peak", /*min_sm=*/90,          takes_by_menu,
                                    launch,       always_suits<GemmArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
