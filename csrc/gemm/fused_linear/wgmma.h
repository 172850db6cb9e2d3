// The tiles of wgmma that products of layers have, and the choice between them.
#pragma once

#include "gemm/fused_linear/fused_linear.h"
#include "gemm/wgmma_plan.h"

namespace warpsmith {

// Of kWgmmaMenu: those whose warpgroups take turns, so that one multiplies under what the other does to its sums; and a wide
// one, where it saves a wave of tiles.
inline constexpr int kFusedTiles[] = {2, 3, 4};

// Half of a gate's columns would be no whole boxes, and gradients have no use for it.
constexpr bool fits_ends(const WgmmaTile& tile, Ends ends) {
  return tile.turns || ends == Ends::epilogue || ends == Ends::heads;
}

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

// The product by a tile of the menu: partial sums, where there are slices. Defined in wgmma.cuh, compiled in a file for each
// tile.
template <WgmmaTile tile>
void launch_fused_wgmma(const FusedArgs& p, const WgmmaChoice& choice, cudaStream_t stream);

}  // namespace warpsmith
