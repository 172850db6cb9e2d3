// Lines of an operand tile that are longer than a swizzle.
#pragma once

#include "tile/operand_tile.h"

namespace warpsmith {

// Lines longer than a swizzle, or of no power of two, cut into panels that lie one behind the other: 64 values of each line,
// or 32 where the length is no multiple of 64.
template <int lines_, int length_>
struct Panels {
  static constexpr int lines = lines_, length = length_, width = length % 64 == 0 ? 64 : 32, size = lines * length;
  static_assert(length % width == 0, "whole panels");
  using Panel = Swizzled<lines, width>;

  __host__ __device__ static constexpr int at(int line, int i) {
    return i / width * Panel::size + Panel::at(line, i % width);
  }
  // As in Swizzled, from an index in the first panel.
  __host__ __device__ static constexpr int moved(int from, int by_lines, int by_values) {
    return Panel::moved(from, by_lines, by_values % width) + by_values / width * Panel::size;
  }
};

}  // namespace warpsmith
