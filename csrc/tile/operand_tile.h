// Tiles of 16-bit operands in shared memory, for tensor cores.
//
// A tile keeps the order of the matrix in memory: it has lines, rows or columns, of values that are neighbours there.
// Seen from the product, the lines of an operand of [m or n, k] run along k (a row-major, b column-major) or along m or
// n (the other way round).
#pragma once

#include <cstdint>

#include "device/swizzle.h"

namespace warpsmith {

enum class Along { k, mn };  // which way lines run

// Lines that lie 16 bytes further apart than they need to: ldmatrix finds the same chunk of eight lines in eight groups
// of banks.
template <int lines_, int length_>
struct Padded {
  static constexpr int lines = lines_, length = length_, stride = length + 8, size = lines * stride;
  // Index in the tile of value `i` of a line.
  __host__ __device__ static constexpr int at(int line, int i) { return line * stride + i; }
  // Index of what is `lines` lines and `i` values after the value at index `from`.
  __host__ __device__ static constexpr int moved(int from, int by_lines, int by_values) {
    return from + by_lines * stride + by_values;
  }
};

// Lines without gaps, their chunks swizzled instead.
template <int lines_, int length_>
struct Swizzled {
  static constexpr int lines = lines_, length = length_, stride = length, size = lines * length;
  using Order = TileSwizzle<uint16_t, length>;
  static_assert(conflict_free<uint16_t, lines, length>(Order{}), "ldmatrix and copies at full speed");

  __host__ __device__ static constexpr int at(int line, int i) { return Order{}(line * length + i); }
  // `by_lines` is a multiple of 8, which swizzles alike; `by_values` has no bit in common with where `from` is in its
  // line, so that flipping bits is adding.
  __host__ __device__ static constexpr int moved(int from, int by_lines, int by_values) {
    return (from ^ by_values) + by_lines * length;
  }
};

template <Along along_, int mn_, int k_, template <int, int> class Layout>
struct OperandTile : Layout<(along_ == Along::k ? mn_ : k_), (along_ == Along::k ? k_ : mn_)> {
  static constexpr Along along = along_;
  static constexpr int mn = mn_, k = k_;
};

// One step of k of both operands.
template <class T, class TileA, class TileB>
struct Stage {
  alignas(128) T a[TileA::size];
  alignas(128) T b[TileB::size];
};

// What a rung's Tile implies: Tile has bm, bn, bk and the warps that share them, warps_m by warps_n.
template <class Tile>
struct Share {
  static constexpr int warps = Tile::warps_m * Tile::warps_n, threads = 32 * warps;
  static constexpr int wm = Tile::bm / Tile::warps_m, wn = Tile::bn / Tile::warps_n;
};

}  // namespace warpsmith
