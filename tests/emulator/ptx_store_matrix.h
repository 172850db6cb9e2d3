// device/ptx/store_matrix.h without PTX.
#pragma once

#include "ptx.h"

namespace emu {

// A lane writes what it gives to the rows that other lanes name.
template <int n>
void store_matrices(void* row, const uint32_t (&from)[n], bool transposed) {
  static_assert(n == 1 || n == 2 || n == 4, "1, 2 or 4 matrices");
  if (lane() < 8 * n) {
    check_aligned(row, 16, "a row of stmatrix");
    shared_offset(row);
  }
  const auto rows = exchange(row);
  const int g = lane() / 4, t = lane() % 4;
  for (int j = 0; j < n; ++j) {
    for (int half = 0; half < 2; ++half) {
      const auto value = static_cast<uint16_t>(from[j] >> (16 * half));
      const int i = 2 * t + half;
      auto* const to = static_cast<uint16_t*>(rows.of[8 * j + (transposed ? i : g)]);
      to[transposed ? g : i] = value;
    }
  }
}

}  // namespace emu

namespace warpsmith::ptx {

template <int n>
void stmatrix(void* row, const uint32_t (&from)[n]) {
  emu::store_matrices(row, from, /*transposed=*/false);
}

template <int n>
void stmatrix_trans(void* row, const uint32_t (&from)[n]) {
  emu::store_matrices(row, from, /*transposed=*/true);
}

}  // namespace warpsmith::ptx
