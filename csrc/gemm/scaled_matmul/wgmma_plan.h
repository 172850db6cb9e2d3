// Which tile multiplies 8-bit matrices by wgmma, and into how many slices k is cut: by the model of clocks of
// gemm/wgmma_plan.h. kernels/warpsmith/gemm/wgmma_plan.py computes the same.
#pragma once

#include "gemm/scaled_matmul/wgmma_tiles.h"
#include "gemm/wgmma_plan.h"

namespace warpsmith {

inline int64_t scaled_workspace_bytes(const ScaledMatmulArgs& p) {
  if (p.sm != 90 || !is_fp8(p.dtype)) return 0;
  const int64_t slices = most_splits(product_of(p));
  return slices == 1 ? 0 : slices * p.m * p.n * static_cast<int64_t>(sizeof(float));
}

inline WgmmaChoice choose_scaled(const WgmmaProblem& p) {
  const int tiles = kScaledTiles - (p.sums == StepSums::stay ? 0 : 1);
  const ToldTile told = told_tile(tiles);
  if (told.slices > 0) {
    return cost_wgmma(p, kScaledMenu[told.tile], told.tile, std::min<int64_t>(told.slices, p.most_slices));
  }
  WgmmaChoice best;
  for (int tile = 0; tile < tiles; ++tile) take_cheaper(best, p, kScaledMenu[tile], tile);
  return best;
}

inline WgmmaChoice choose_integer(const WgmmaProblem& p) {
  WgmmaChoice best;
  for (int tile = 0; tile < kIntegerTiles; ++tile) take_cheaper(best, p, kIntegerMenu[tile], tile);
  return best;
}

inline WgmmaChoice choose_scaled(const ScaledMatmulArgs& p) {
  WgmmaProblem sizes{.batch = 1,
                     .m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .size = 1,
                     .a_along_k = true,
                     .swaps = false,
                     .most_slices = 1,
                     .sm_count = p.sm_count};
  if (!is_fp8(p.dtype)) return choose_integer(sizes);  // whose sums are whole
  sizes.most_slices = most_splits(product_of(p));
  sizes.sums = p.blocks ? StepSums::scaled : p.fast_accum ? StepSums::stay : StepSums::leave;
  return choose_scaled(sizes);
}

}  // namespace warpsmith
