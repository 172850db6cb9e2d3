// Scaled product of int8 matrices by wgmma.
//   Against `mma_i8`: the kernel of `wgmma_peak`, at twice the rate of mma.sync. Sums are exact in int32, so they stay in the
//   tensor cores, and k is not cut into slices; the tile by a model of clocks.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: large products the power, few rows memory.
#include <utility>

#include "gemm/scaled_matmul/wgmma.cuh"
#include "gemm/scaled_matmul/wgmma.h"
#include "gemm/scaled_matmul/wgmma_plan.h"
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

template <size_t... tile>
void launch_choice(const ScaledMatmulArgs& p, const WgmmaChoice& choice, cudaStream_t stream,
                   std::index_sequence<tile...>) {
  const auto run = [&]<WgmmaTile of>() {
    launch_scaled_kernel<ScaledConfig<int8_t, int8_t, of, true>>(p, choice, stream);
    return true;
  };
  const bool known = ((choice.tile == tile && run.template operator()<kIntegerMenu[tile]>()) || ...);
  if (!known) broken_promise("a tile of the menu");
}

void launch(const ScaledMatmulArgs& p, cudaStream_t stream) {
  launch_choice(p, choose_scaled(p), stream, std::make_index_sequence<kIntegerTiles>());
}

const Register<ScaledMatmulArgs> registered{
    "wgmma_i8", /*min_sm=*/90, takes, launch, always_suits<ScaledMatmulArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
