// TF32 product by wgmma, a row-major, b in either order; batches.
//   Against `mma_tma`: wgmma reads operands from shared memory for four warps at once, tiles are up to 128 x 256, and one
//   warpgroup copies while two multiply (gemm/wgmma_product.cuh); tile and slices of k by a model of clocks. Of TF32 it takes
//   lines along k alone. Where b is row-major the product is computed as d^T = b^T a^T, whose first operand goes through
//   registers: that is the transposition.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: the tensor cores; large products the power.
#include "gemm/matmul_tf32/matmul_tf32.h"
#include "gemm/sum_splits_early.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_menu.h"
#include "gemm/wgmma_plan.h"
#include "gemm/wgmma_product.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const Tf32Args& p) {
  if (const char* reason = needs_wgmma(p)) return reason;
  if (p.a.order != Order::rows) return "needs a row-major";
  if (const char* reason = needs_lines_for_maps(p)) return reason;
  return needs_tiles_in_grid(p);
}

template <WgmmaTile tile>
void launch_tile(const GemmArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  if (p.b.order == Order::columns) {
    launch_wgmma_kernel<WgmmaProductConfig<float, Along::k, Along::k, tile>>(seen_by(tile, p), choice, stream);
  } else if constexpr (!tile.turns) {
    constexpr WgmmaTile kSwapped{tile.bm, tile.bn, tile.cluster, false, true};
    launch_wgmma_kernel<WgmmaProductConfig<float, Along::mn, Along::k, kSwapped>>(seen_by(kSwapped, p), choice, stream);
  } else {
    broken_promise("warpgroups in turns have too few registers for a in them");
  }
}

void launch(const Tf32Args& p, cudaStream_t stream) {
  const WgmmaChoice choice = choose_wgmma(p);
  launch_tile_of<kWgmmaMenu>(choice.tile, [&]<WgmmaTile tile>() { launch_tile<tile>(p, choice, stream); });
  if (choice.slices > 1) sum_splits_early<float>(p, choice.slices, stream);
}

const Register<Tf32Args> registered{"wgmma_peak", /*min_sm=*/90,          takes,
                                    launch,       always_suits<Tf32Args>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
