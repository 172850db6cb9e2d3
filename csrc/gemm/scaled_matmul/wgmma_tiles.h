// The tiles by which wgmma multiplies 8-bit matrices; the choice between them is that of wgmma_plan.h.
#pragma once

#include "gemm/scaled_matmul/scaled_matmul.h"
#include "gemm/wgmma_tiles.h"

namespace warpsmith {

// Two sets of sums leave registers for tiles of 192 columns. The last tile is for sums that stay in the tensor cores.
inline constexpr WgmmaTile kScaledMenu[] = {
    {128, 192, 2, false, false}, {128, 128, 1, false, false}, {128, 64, 1, false, true},   {64, 64, 1, false, true},
    {64, 32, 1, false, true},    {64, 16, 1, false, true},    {128, 128, 2, false, false}, {128, 256, 2, false, false}};
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

// The product by a tile of the menu: partial sums, where there are slices. Defined in wgmma.cuh, compiled in a file for each
// tile.
template <WgmmaTile tile>
void launch_scaled_tile(const ScaledMatmulArgs& p, const WgmmaChoice& choice, cudaStream_t stream);

}  // namespace warpsmith
