// What a thread loads of a tile.
#pragma once

#include "reduce/span.cuh"

namespace warpsmith {

// A thread's packs of one operand, tile after tile.
template <class T, class Tile>
class TilePacks {
  static constexpr int kApart = Tile::threads * kPack<T>;
  const T* first_;  // of this thread

 public:
  __device__ __forceinline__ TilePacks(const Span<T, kPack<T>>& x, int64_t tile) : first_(x.at(tile + threadIdx.x)) {}

  // Of the tile `left` packs are there; those past them read as zeros, which every dtype writes as zero bits.
  __device__ __forceinline__ void load(Pack<T> (&to)[Tile::packs], int64_t left) const {
    if (left >= Tile::size) {
#pragma unroll
      for (int i = 0; i < Tile::packs; ++i) warpsmith::load<Cache::streaming>(to[i], first_ + i * kApart);
      return;
    }
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) {
      to[i] = {};
      if (static_cast<int>(threadIdx.x) + i * Tile::threads < left) {
        warpsmith::load<Cache::streaming>(to[i], first_ + i * kApart);
      }
    }
  }

  __device__ __forceinline__ void advance(int64_t packs) { first_ += packs * kPack<T>; }
};

}  // namespace warpsmith
