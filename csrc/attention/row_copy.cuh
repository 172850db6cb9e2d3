// Rows of heads from global to shared memory, 16 bytes a copy, zeros where there is nothing.
#pragma once

#include <cstdint>

#include "device/ptx/copy.h"
#include "tile/panels.h"

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
  // `rows`: the first of all; the tile that is copied first starts at row `first`.
  __device__ __forceinline__ RowCopy(const T* rows, int64_t stride, int64_t first) {
    const uint32_t thread = threadIdx.x;
    from_ = rows + (first + Layout::lines - kStep + line(thread)) * stride + col(thread);
  }

  // From one of a thread's lines to the next: few enough for 32 bits (kMostTokenStride).
  __device__ __forceinline__ static uint32_t step_bytes(int64_t stride) {
    return kStep * static_cast<uint32_t>(stride) * static_cast<uint32_t>(sizeof(T));
  }

  // Starts copying the next tile, of whose rows d values exist, whole chunks, and of which `left` rows exist: where that is
  // not asked, all of them. `thread`: its index; `step`: step_bytes().
  template <bool ask>
  __device__ __forceinline__ void start(T* tile, uint32_t thread, uint32_t step, int d, int left = 0) {
    const int first = Layout::at(line(thread), col(thread));
#pragma unroll
    for (int r = kRounds - 1; r >= 0; --r) {
      const bool there = !ask || line(thread) + r * kStep < left;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        T* to = tile + Layout::Panel::moved(first, r * kStep, 0) + panel * Layout::Panel::size;
        ptx::cp_async_zfill(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from_ + panel * Layout::width),
                            there && col(thread) + panel * Layout::width < d);
      }
      from_ = reinterpret_cast<const T*>(reinterpret_cast<const char*>(from_) - step);
    }
  }

 private:
  // Of the thread's first chunk in a tile.
  __device__ __forceinline__ static int line(uint32_t thread) { return static_cast<int>(thread / kPerLine); }
  __device__ __forceinline__ static int col(uint32_t thread) { return static_cast<int>(thread % kPerLine * kChunk); }

  const T* from_;  // the next chunk: the thread's last line of the next tile
};

}  // namespace warpsmith
