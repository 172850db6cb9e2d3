// A tile of lines of 128 bytes in shared memory, whose chunks of 16 bytes lie so that neither a line nor a column of squares
// (square.cuh) has two in the same banks.
#pragma once

#include "device/swizzle.h"
#include "transform/transpose/square.cuh"

namespace warpsmith {

inline constexpr int kLineChunks = kBankBytes / kChunkBytes;

// Of chunk `chunk` of a line. Lines of one square differ in their last bits, the squares of a column in those above.
template <class T>
__host__ __device__ constexpr int line_place(int line, int chunk) {
  return line * kLineChunks + (chunk ^ ((line ^ (line / Square<T>::side)) % kLineChunks));
}

namespace detail {

// Whether eight lanes that hold the squares of a column, row `i` of each, use every bank once.
template <class T>
constexpr bool squares_are_apart() {
  for (int i = 0; i < Square<T>::side; ++i) {
    unsigned banks = 0;
    for (int square = 0; square < kLineChunks; ++square) {
      banks |= 1u << (line_place<T>(square * Square<T>::side + i, 0) % kLineChunks);
    }
    if (banks != (1u << kLineChunks) - 1) return false;
  }
  return true;
}

static_assert(squares_are_apart<uint8_t>() && squares_are_apart<uint16_t>() && squares_are_apart<uint32_t>());

}  // namespace detail
}  // namespace warpsmith
