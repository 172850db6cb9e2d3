// Products of layers with what follows them, by wgmma.
//   Against `mma`: the kernel of `wgmma_peak` of matmul with tiles whose two warpgroups take turns, so that activations, gates
//   and stores of one run under the products of the other, or with wider ones where that saves a wave; biases arrive under
//   the products of their tile; results leave by the copy engine, those of heads too, which knows where a sequence or a head
//   ends. k of few tiles is cut into slices, which a second kernel adds up in order.
//   Occupancy: one block of 3 warpgroups in up to 227 KB.
//   Bound: large products the power, few rows memory.
#include "gemm/fused_linear/wgmma.h"

#include "gemm/fused_linear/sum_slices.h"
#include "gemm/fused_linear/wgmma_plan.h"
#include "gemm/wgmma.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr const char* kNeedsWholeHeads = "needs heads of a multiple of 64 values";

const char* takes(const FusedArgs& p) {
  if (const char* reason = needs_wgmma(p)) return reason;
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_layout_of_layers(p)) return reason;
  if (const char* reason = needs_packs_of_all(p)) return reason;
  if (const char* reason = needs_heads_of(p, 64, kNeedsWholeHeads)) return reason;
  const bool up = p.ends != Ends::gate || operand_has_map(p, p.up, p.k, p.n);
  if (!operands_have_maps(p) || !up) return kNeedsLinesForMaps;
  return needs_tiles_in_grid(p);
}

void launch(const FusedArgs& p, cudaStream_t stream) {
  const WgmmaChoice choice = choose_fused(p);
  switch (choice.tile) {
    case 2:
      launch_fused_wgmma<kWgmmaMenu[2]>(p, choice, stream);
      break;
    case 3:
      launch_fused_wgmma<kWgmmaMenu[3]>(p, choice, stream);
      break;
    default:
      launch_fused_wgmma<kWgmmaMenu[4]>(p, choice, stream);
  }
  if (choice.slices > 1) sum_slices(p, choice.slices, stream);
}

const Register<FusedArgs> registered{"wgmma", /*min_sm=*/90, takes, launch, always_suits<FusedArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
