// Tiles of two weights at once: eight of a tile's columns are of one, the next eight the same columns of the other, so that
// a thread gets the sums of both.
#pragma once

#include "tile/copy.cuh"

namespace warpsmith {

// As TileCopy (tile/copy.cuh), of swizzled tiles.
template <class T, class Tile, int threads>
class PairedCopy {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T)), kPerLine = Tile::length / kChunk;
  static constexpr int kChunks = Tile::lines * kPerLine, kStep = threads / kPerLine, kRounds = kChunks / threads;
  static constexpr bool kAlongK = Tile::along == Along::k;
  static constexpr int kMany = 1 << 30;
  static_assert(kChunks % threads == 0 && threads % kPerLine == 0, "an even share");
  static_assert(kStep % (kAlongK ? 16 : 8) == 0, "a thread's lines are of one weight, and swizzle alike");

 public:
  // The tile's first column is `n` of either weight, which have `extent` of them.
  __device__ __forceinline__ PairedCopy(const Matrix& one, const Matrix& other, int64_t extent, int64_t n, int64_t k) {
    const int line = static_cast<int>(threadIdx.x) / kPerLine, i = static_cast<int>(threadIdx.x) % kPerLine * kChunk;
    const int paired = kAlongK ? line : i, col = paired / 16 * 8 + paired % 8;
    const Matrix& x = paired / 8 % 2 == 0 ? one : other;
    to_ = Tile::at(line, i);
    k_ = kAlongK ? i : line;
    step_ = (kAlongK ? kStep / 2 : kStep) * x.ld;
    from_ = static_cast<const T*>(x.data) + (kAlongK ? (n + col) * x.ld + k + i : (k + line) * x.ld + n + col);
    const int left = static_cast<int>(min(max(extent - n - col, int64_t{0}), int64_t{kMany}));
    if constexpr (kAlongK) {
      left_ = left;
    } else if (left == 0) {
      k_ = kMany;  // none of its values is there
    }
  }

  __device__ __forceinline__ void start(T* tile, int64_t k_left, int part = 0, int parts = 1) {
    const int left = static_cast<int>(k_left < Tile::k ? k_left : Tile::k);
#pragma unroll
    for (int r = kRounds * part / parts; r < kRounds * (part + 1) / parts; ++r) {
      const bool valid = kAlongK ? r * (kStep / 2) < left_ && k_ < left : k_ + r * kStep < left;
      ptx::cp_async_zfill(reinterpret_cast<uint4*>(tile + Tile::moved(to_, r * kStep, 0)),
                          reinterpret_cast<const uint4*>(from_), valid);
      from_ += step_;
    }
  }

  __device__ __forceinline__ void advance() {
    if (kAlongK) from_ += Tile::k - kRounds * step_;
  }

 private:
  const T* from_;
  int64_t step_;
  int to_, k_, left_;  // the last along k only: columns from the first on
};

}  // namespace warpsmith
