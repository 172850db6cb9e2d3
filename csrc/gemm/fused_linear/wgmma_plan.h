// Which tile multiplies for layers by wgmma, and into how many slices k is cut: by the model of clocks of
// gemm/wgmma_plan.h. kernels/warpsmith/gemm/wgmma_plan.py computes the same.
#pragma once

#include "gemm/fused_linear/wgmma.h"
#include "gemm/wgmma_plan.h"

namespace warpsmith {

inline WgmmaChoice choose_fused(const FusedArgs& p) {
  WgmmaProblem problem = wgmma_problem(p);
  if (p.ends == Ends::gate) problem.n *= 2;
  if (!may_split(p)) problem.most_slices = 1;
  WgmmaChoice best;
  for (const int tile : kFusedTiles) {
    if (fits_ends(kWgmmaMenu[tile], p.ends)) take_cheaper(best, problem, kWgmmaMenu[tile], tile);
  }
  return best;
}

}  // namespace warpsmith
