// Products of groups of fp8 rows by wgmma, formats mixed.
//   Against `naive`: the kernel of grouped_matmul's `wgmma_groups`, at twice the rate of f16. Sums leave the tensor cores every
//   128 values of k (wgmma_apart.cuh), unless `fast_accum` says that they may stay; scales multiply what leaves in the end.
//   Tile by a model of clocks; for few rows a group, operands change places.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: many rows a group the power, few the weights from memory.
//   Sums in two levels: DeepSeek-V3 Technical Report, section 3.3.2: https://arxiv.org/abs/2412.19437
#include "gemm/scaled_grouped_matmul/wgmma.h"
#include "gemm/scaled_grouped_matmul/wgmma_plan.h"
#include "gemm/wgmma_menu.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const ScaledGroupedArgs& p) {
  if (const char* reason = needs_rows(p)) return reason;
  return needs_wgmma_groups(p);
}

void launch(const ScaledGroupedArgs& p, cudaStream_t stream) {
  const GroupedChoice choice = choose_scaled_grouped(
      {.groups = p.groups.count, .m = p.m, .n = p.n, .k = p.k, .along_k = false, .size = 1, .sm_count = p.sm_count},
      p.fast_accum);
  launch_tile_of<kScaledGroupedMenu>(choice.tile,
                                     [&]<WgmmaTile tile>() { launch_scaled_grouped_tile<tile>(p, stream); });
}

const Register<ScaledGroupedArgs> registered{"wgmma_groups", /*min_sm=*/90, takes, launch};

}  // namespace
}  // namespace warpsmith
