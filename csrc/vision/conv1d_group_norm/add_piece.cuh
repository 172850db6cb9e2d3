// Sums in f32, piece by piece: the error of one chain of additions grows with its length, and tensor cores cut off what
// others round. What the addition of a piece loses starts the next one, so that it takes no register of its own.
//   Kahan 1965, "Further remarks on reducing truncation errors", https://doi.org/10.1145/363707.363723
#pragma once

#include <cmath>

#include "tile/warp_mma.cuh"

namespace warpsmith {

// Adds a piece to `total`, and leaves in its place what was lost.
__device__ __forceinline__ void add_piece(float& total, float& piece) {
  const float next = total + piece, lost = piece - (next - total);
  piece = fabsf(lost) < INFINITY ? lost : 0.0f;  // an infinite sum has lost nothing
  total = next;
}

template <class T, class Tile>
__device__ __forceinline__ void add_piece(WarpSums<T, float, Tile>& totals, WarpSums<T, float, Tile>& piece) {
#pragma unroll
  for (int i = 0; i < Share<Tile>::wm / 16; ++i) {
#pragma unroll
    for (int j = 0; j < Share<Tile>::wn / 8; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) add_piece(totals.sums[i][j].value[v], piece.sums[i][j].value[v]);
    }
  }
}

// Of products of planes one after another, which steps end a piece: short ones of the last product, beside which the
// others are small. `shift`: of how many steps the short ones are, as a power of two.
template <int planes, int shift>
struct Pieces {
  static constexpr int kLonger = 3;
  int mask;

  __device__ __forceinline__ explicit Pieces(bool last) : mask((1 << (last ? shift : shift + kLonger)) - 1) {}
  __device__ __forceinline__ bool end(int step) const { return planes > 1 && (step & mask) == mask; }
};

}  // namespace warpsmith
