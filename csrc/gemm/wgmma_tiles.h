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
  int cluster;         // blocks, whose tiles lie below each other and share b
  bool turns;          // two warpgroups have tiles of their own; otherwise they share one
  bool swapped;        // d^T = b^T a^T: columns of the product are rows of the tile, for few rows
  bool joins = false;  // slices of k are added up by the last block of a tile; otherwise by a second kernel
};

inline constexpr WgmmaTile kWgmmaMenu[] = {
    {128, 256, 2, false, false}, {128, 256, 1, false, false}, {128, 192, 2, false, false}, {128, 128, 2, true, false},
    {128, 128, 1, true, false},  {128, 64, 1, false, false},  {128, 64, 1, false, true},   {64, 64, 1, false, true},
    {64, 32, 1, false, true},    {64, 16, 1, false, true}};
inline constexpr int kWgmmaTiles = sizeof(kWgmmaMenu) / sizeof(WgmmaTile);

// Of `wgmma_joined`.
inline constexpr WgmmaTile kJoinedMenu[] = {{64, 128, 4, false, true, true},
                                            {64, 64, 2, false, true, true},
                                            {64, 32, 1, false, true, true},
                                            {64, 16, 1, false, true, true}};
inline constexpr int kJoinedTiles = sizeof(kJoinedMenu) / sizeof(WgmmaTile);

// Counters of a launch whose blocks join slices, and ranges of them (host/ticket_range.h).
inline constexpr int kJoinTickets = 512, kJoinRanges = 256;

struct WgmmaChoice {
  int tile = -1;   // of the menu
  int slices = 1;  // of k
  int64_t depth;   // of a slice, in steps of a line of k
  int64_t clocks = std::numeric_limits<int64_t>::max();
  int group = 8;  // rows of tiles that are walked column by column
  int range =
      -1;  // of the counters with which blocks join slices (gemm/wgmma_join.cuh); -1: a second kernel adds them up
};

// The product by a tile of the menu, for the types and layouts of the call: partial sums, where there are slices. Defined in
// wgmma_product.cuh, compiled in a file for each tile.
template <WgmmaTile tile>
void launch_wgmma_tile(const GemmArgs& p, const WgmmaChoice& choice, cudaStream_t stream);

}  // namespace warpsmith
