// The tiles of wgmma that products of layers have.
#pragma once

#include "gemm/fused_linear/fused_linear.h"
#include "gemm/wgmma_tiles.h"

namespace warpsmith {

// Of kWgmmaMenu: those whose warpgroups take turns, so that one multiplies under what the other does to its sums; and a wide
// one, where it saves a wave of tiles.
inline constexpr int kFusedTiles[] = {2, 3, 4};

// Half of a gate's columns would be no whole boxes of the wide one.
constexpr bool fits_ends(const WgmmaTile& tile, Ends ends) { return tile.turns || ends != Ends::gate; }

// The product by a tile of the menu: partial sums, where there are slices. Defined in wgmma.cuh, compiled in a file for each
// tile.
template <WgmmaTile tile>
void launch_fused_wgmma(const FusedArgs& p, const WgmmaChoice& choice, cudaStream_t stream);

}  // namespace warpsmith
