// Which tile multiplies groups of fp8 values by wgmma: by the model of gemm/grouped_matmul/wgmma_plan.h.
// kernels/warpsmith/gemm/grouped_plan.py computes the same.
#pragma once

#include "gemm/grouped_matmul/wgmma_plan.h"
#include "gemm/scaled_grouped_matmul/wgmma_tiles.h"

namespace warpsmith {

inline GroupedChoice choose_scaled_grouped(const GroupedSizes& p, bool fast_accum) {
  return choose_grouped(p, kScaledGroupedMenu, kScaledGroupedTiles - (fast_accum ? 0 : 1));
}

}  // namespace warpsmith
