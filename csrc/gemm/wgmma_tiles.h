// The tiles by which wgmma multiplies, and what is chosen for a call (wgmma_plan.h). Apart from the choice, so that other
// costs compile no kernel anew.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "gemm/gemm.h"

namespace warpsmith {

// A tile as the instruction sees it: of bm rows and bn columns.
struct WgmmaTile {
  int bm, bn;
  int cluster;   // blocks, whose tiles lie below each other and share b
  bool turns;    // two warpgroups have tiles of their own; otherwise they share one
  bool swapped;  // d^T = b^T a^T: columns of the product are rows of the tile, for few rows
};

inline constexpr WgmmaTile kWgmmaMenu[] = {
    {128, 256, 2, false, false}, {128, 256, 1, false, false}, {128, 192, 2, false, false}, {128, 128, 2, true, false},
    {128, 128, 1, true, false},  {128, 64, 1, false, false},  {128, 64, 1, false, true},   {64, 64, 1, false, true},
    {64, 32, 1, false, true},    {64, 16, 1, false, true}};
inline constexpr int kWgmmaTiles = sizeof(kWgmmaMenu) / sizeof(WgmmaTile);

struct WgmmaChoice {
  int tile = -1;   // of the menu
  int slices = 1;  // of k
  int64_t depth;   // of a slice, in steps of a line of k
  int64_t clocks = std::numeric_limits<int64_t>::max();
  int group = 8;  // rows of tiles that are walked column by column
};

// The product by a tile of the menu, for the types and layouts of the call: partial sums, where there are slices. Defined in
// wgmma_product.cuh, compiled in a file for each tile.
template <WgmmaTile tile>
void launch_wgmma_tile(const GemmArgs& p, const WgmmaChoice& choice, cudaStream_t stream);

}  // namespace warpsmith
