// The tiles by which wgmma multiplies groups of fp8 values; the choice between them is that of wgmma_plan.h.
#pragma once

#include "gemm/scaled_grouped_matmul/scaled_grouped_matmul.h"
#include "gemm/wgmma_tiles.h"

namespace warpsmith {

// Two sets of sums leave registers for tiles of 192 columns. The last tile is for sums that stay in the tensor cores.
inline constexpr WgmmaTile kScaledGroupedMenu[] = {
    {128, 192, 1, false, false}, {128, 64, 1, false, true}, {128, 32, 1, false, true}, {128, 256, 1, false, false}};
inline constexpr int kScaledGroupedTiles = sizeof(kScaledGroupedMenu) / sizeof(WgmmaTile);

// The products by a tile of the menu. Defined in wgmma.cuh, compiled in a file for each tile.
template <WgmmaTile tile>
void launch_scaled_grouped_tile(const ScaledGroupedArgs& p, cudaStream_t stream);

}  // namespace warpsmith
