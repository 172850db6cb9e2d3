// The tiles by which wgmma multiplies groups; the choice between them is that of wgmma_plan.h.
#pragma once

#include "gemm/grouped_matmul/grouped_matmul.h"
#include "gemm/wgmma_tiles.h"

namespace warpsmith {

// Swapped: rows of x are columns of the tile, for groups of few rows.
inline constexpr WgmmaTile kGroupedMenu[] = {
    {128, 256, 1, false, false}, {128, 128, 1, true, false}, {128, 64, 1, false, true}, {128, 32, 1, false, true}};
inline constexpr int kGroupedTiles = sizeof(kGroupedMenu) / sizeof(WgmmaTile);

// The products by a tile of the menu, for the types and layouts of the call. Defined in wgmma.cuh, compiled in a file for each
// tile.
template <WgmmaTile tile>
void launch_grouped_tile(const GroupedArgs& p, cudaStream_t stream);

}  // namespace warpsmith
