// The products on a block's walk, added up.
#pragma once

#include "reduce/dot/thread_dot.cuh"
#include "reduce/tile_packs.cuh"
#include "reduce/walk.h"

namespace warpsmith {

// This thread's products; the few outside of all packs go to the first block.
template <class Tile, class Running, class T>
__device__ __forceinline__ Running dot_of_walk(const Span<T, kPack<T>>& x, const Span<T, kPack<T>>& y,
                                               const Walk& walk) {
  Running total{};
  const int64_t first = blockIdx.x * walk.apart;
  TilePacks<T, Tile> x_packs(x, first), y_packs(y, first);
  for (int64_t left = min(walk.extent, x.accesses - first); left > 0; left -= walk.step) {
    // load
    Pack<T> a[Tile::packs], b[Tile::packs];
    x_packs.load(a, left);
    y_packs.load(b, left);
    x_packs.advance(walk.step);
    y_packs.advance(walk.step);

    // multiply and add
    ThreadDot<T, kPack<T>> sum;
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) sum.add(a[i], b[i]);
    total += static_cast<Running>(sum.total());
  }
  total += dot_of_ends(x, y);
  return total;
}

}  // namespace warpsmith
