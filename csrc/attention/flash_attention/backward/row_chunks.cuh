// Rows of heads between global memory and tiles in shared memory, both ways, 16 bytes an access.
#pragma once

#include <cstdint>

#include "device/ptx/copy.h"
#include "tile/panels.h"

namespace warpsmith {

// A thread's part in moving rows, of a tile whose layout is Panels: one chunk of 16 bytes of every kStep-th row, in every
// panel.
template <class Tile, int threads>
class RowChunks {
  static constexpr int kPerRow = Tile::width / 8, kPanels = Tile::length / Tile::width;
  static constexpr int kStep = threads / kPerRow, kRounds = (Tile::lines + kStep - 1) / kStep;
  static_assert(threads % kPerRow == 0 && kStep % 8 == 0, "rows that swizzle alike");
  static_assert(Tile::lines % kStep == 0 || kRounds == 1);
  static constexpr bool kIdle = Tile::lines < kStep;

 public:
  // `width`: values of a row that exist, a multiple of 8. `thread`: thread_again() where what follows from it would take
  // registers through a main loop.
  __device__ __forceinline__ explicit RowChunks(int width, int thread = static_cast<int>(threadIdx.x)) {
    row_ = thread / kPerRow;
    col_ = thread % kPerRow * 8;
    tile_ = Tile::at(row_, col_);
    inside_ = 0;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) inside_ |= (col_ + p * Tile::width < width ? 1u : 0u) << p;
  }

  // Starts copying rows `step` elements apart, of which `rows` exist; zeros take the place of the rest.
  template <class T>
  __device__ __forceinline__ void start(T* tile, const T* rows_from, int64_t step, int rows) const {
    if (kIdle && row_ >= Tile::lines) return;
    const T* from = rows_from + row_ * step + col_;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const bool there = row_ + r * kStep < rows;
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        ptx::cp_async_zfill(reinterpret_cast<uint4*>(tile + Tile::moved(tile_, r * kStep, p * Tile::width)),
                            reinterpret_cast<const uint4*>(from + p * Tile::width), there && (inside_ >> p & 1u) != 0);
      }
      from += kStep * step;
    }
  }

  // Stores them.
  template <class T>
  __device__ __forceinline__ void store(T* rows_to, int64_t step, int rows, const T* tile) const {
    if (kIdle && row_ >= Tile::lines) return;
    T* to = rows_to + row_ * step + col_;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (row_ + r * kStep < rows && (inside_ >> p & 1u) != 0) {
          *reinterpret_cast<uint4*>(to + p * Tile::width) =
              *reinterpret_cast<const uint4*>(tile + Tile::moved(tile_, r * kStep, p * Tile::width));
        }
      }
      to += kStep * step;
    }
  }

 private:
  int row_, col_, tile_;
  uint32_t inside_;  // bit p: the chunk exists in panel p
};

}  // namespace warpsmith
