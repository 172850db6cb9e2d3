// The values on a block's walk, added up.
#pragma once

#include "reduce/reduce_sum/dtypes.cuh"
#include "reduce/tile_packs.cuh"
#include "reduce/total.cuh"
#include "reduce/walk.h"

namespace warpsmith {

// Decoding fp8 in integer arithmetic takes more registers.
template <class T, class Tile>
constexpr int resident_blocks() {
#if defined(__CUDA_ARCH__) && !WARPSMITH_HAS_FP8_CVT
  return kIsFp8<T> ? Tile::blocks / 2 : Tile::blocks;
#else
  return Tile::blocks;
#endif
}

// This thread's values; the few outside of all packs go to the first block.
template <class Tile, class Running, class T>
__device__ __forceinline__ Running sum_of_walk(const Span<T, kPack<T>>& x, const Walk& walk) {
  Running total{};
  const int64_t first = blockIdx.x * walk.apart;
  TilePacks<T, Tile> tile(x, first);
  for (int64_t left = min(walk.extent, x.accesses - first); left > 0; left -= walk.step) {
    // load
    Pack<T> packs[Tile::packs];
    tile.load(packs, left);
    tile.advance(walk.step);

    // add
    ThreadSum<T, Wide<T>, kPack<T>> sum;
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) sum.add(packs[i]);
    total += static_cast<Running>(sum.total());
  }
  if (blockIdx.x == 0 && threadIdx.x < x.ends()) total += static_cast<Running>(as_total(x.end(threadIdx.x)));
  return total;
}

}  // namespace warpsmith
