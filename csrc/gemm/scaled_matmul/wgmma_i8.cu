// Scaled product of int8 matrices by wgmma.
//   Against `mma_i8`: the kernel of `wgmma_peak`, at twice the rate of mma.sync. Sums are exact in int32, so they stay in the
//   tensor cores, and k is not cut into slices; the tile by a model of clocks.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: large products the power, few rows memory.
#include "gemm/scaled_matmul/wgmma.cuh"
#include "gemm/scaled_matmul/wgmma.h"
#include "gemm/scaled_matmul/wgmma_plan.h"
#include "gemm/wgmma_menu.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const ScaledMatmulArgs& p) {
  if (p.dtype != Dtype::i8) return "takes i8";
  if (const char* reason = needs_scaled_wgmma(p)) return reason;
  if (const char* reason = needs_scales_of_all_k(p)) return reason;
  return needs_countable_sums(p);
}

void launch(const ScaledMatmulArgs& p, cudaStream_t stream) {
  const WgmmaChoice choice = choose_scaled(p);
  launch_tile_of<kIntegerMenu>(choice.tile, [&]<WgmmaTile tile>() {
    launch_scaled_kernel<ScaledConfig<int8_t, int8_t, tile, true>>(p, choice, stream);
  });
}

const Register<ScaledMatmulArgs> registered{
    "wgmma_i8", /*min_sm=*/90, takes, launch, always_suits<ScaledMatmulArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
