// Which tile multiplies 8-bit matrices by wgmma, and into how many slices k is cut: by the model of clocks of
// gemm/wgmma_plan.h. kernels/warpsmith/gemm/wgmma_plan.py computes the same.
#pragma once

#include "gemm/scaled_matmul/scaled_matmul.h"
#include "gemm/wgmma_plan.h"

namespace warpsmith {

// Two sets of sums leave registers for tiles of 192 columns. The last tile is for sums that stay in the tensor cores.
inline constexpr WgmmaTile kScaledMenu[] = {
    {128, 192, 2, false, false}, {128, 128, 1, false, false}, {128, 64, 1, false, true},  {64, 64, 1, false, true},
    {64, 32, 1, false, true},    {64, 16, 1, false, true},    {128, 256, 2, false, false}};
inline constexpr int kScaledTiles = sizeof(kScaledMenu) / sizeof(WgmmaTile);

// Of int8, whose sums become floats before they leave: wider tiles leave no registers for that.
inline constexpr WgmmaTile kIntegerMenu[] = {{128, 128, 1, false, false},
                                             {128, 64, 1, false, true},
                                             {64, 64, 1, false, true},
                                             {64, 32, 1, false, true},
                                             {64, 16, 1, false, true}};
inline constexpr int kIntegerTiles = sizeof(kIntegerMenu) / sizeof(WgmmaTile);

// The product without its scales, of values of one byte.
inline GemmArgs product_of(const ScaledMatmulArgs& p) {
  return {.a = p.a,
          .b = p.b,
          .d = p.d,
          .workspace = p.workspace,
          .batch = 1,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .alpha = 1.0f,
          .dtype = p.dtype,
          .sm = p.sm,
          .sm_count = p.sm_count};
}

inline int64_t scaled_workspace_bytes(const ScaledMatmulArgs& p) {
  if (p.sm != 90 || !is_fp8(p.dtype)) return 0;
  const int64_t slices = most_splits(product_of(p));
  return slices == 1 ? 0 : slices * p.m * p.n * static_cast<int64_t>(sizeof(float));
}

inline WgmmaChoice choose_scaled(const WgmmaProblem& p, bool fast_accum) {
  WgmmaChoice best;
  for (int tile = 0; tile < kScaledTiles - (fast_accum ? 0 : 1); ++tile) {
    take_cheaper(best, p, kScaledMenu[tile], tile);
  }
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
  return choose_scaled(sizes, p.fast_accum);
}

// The product by a tile of the menu: partial sums, where there are slices. Defined in wgmma.cuh, compiled in a file for each
// tile.
template <WgmmaTile tile>
void launch_scaled_tile(const ScaledMatmulArgs& p, const WgmmaChoice& choice, cudaStream_t stream);

}  // namespace warpsmith
