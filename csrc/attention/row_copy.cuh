// Rows of heads from global to shared memory, 16 bytes a copy, zeros where there is nothing.
#pragma once

#include <cstdint>

#include "device/ptx/copy.h"

namespace warpsmith {

// A thread's part in copying one tile of rows after another, from the last to the first. It has the same chunk of each panel
// of every kStep-th line, so that one pointer, moved by addition, serves all panels. Layout: Panels.
template <class T, class Layout, int threads>
class RowCopy {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T)), kPerLine = Layout::width / kChunk;
  static constexpr int kStep = threads / kPerLine, kRounds = Layout::lines / kStep;
  static constexpr int kPanels = Layout::length / Layout::width;
  static_assert(Layout::lines % kStep == 0 && kStep % 8 == 0, "an even share of lines that swizzle alike");

 public:
  // `rows`: the first of all; the tile at hand starts at row `first`. `d`: values of a row that there are, whole chunks.
  __device__ __forceinline__ RowCopy(const T* rows, int64_t stride, int64_t first, int d) : stride_(stride) {
    const int thread = static_cast<int>(threadIdx.x), col = thread % kPerLine * kChunk;
    line_ = thread / kPerLine;
    to_ = Layout::at(line_, col);
    from_ = rows + (first + line_) * stride + col;
    inside_ = 0;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) inside_ |= (col + panel * Layout::width < d ? 1u : 0u) << panel;
  }

  // Starts copying the tile at hand, of which `left` rows exist: where that is not asked, all of them.
  template <bool ask>
  __device__ __forceinline__ void start(T* tile, int left = 0) const {
    const T* from = from_;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const bool there = !ask || line_ + r * kStep < left;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        T* to = tile + Layout::Panel::moved(to_, r * kStep, 0) + panel * Layout::Panel::size;
        ptx::cp_async_zfill(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from + panel * Layout::width),
                            there && (inside_ >> panel & 1u) != 0);
      }
      from += kStep * stride_;
    }
  }

  // On to the tile before.
  __device__ __forceinline__ void back() { from_ -= Layout::lines * stride_; }

 private:
  const T* from_;    // the thread's first chunk of the tile at hand
  int64_t stride_;   // values from one row to the next
  int to_, line_;    // where that chunk goes, and in which line it is
  uint32_t inside_;  // bit p: the chunk in panel p exists
};

}  // namespace warpsmith
