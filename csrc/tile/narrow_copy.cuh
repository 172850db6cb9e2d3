// An operand's tiles from global to shared memory at any alignment, through registers.
#pragma once

#include <cstdint>

#include "tile/copy.cuh"
#include "tile/operand_tile.h"

namespace warpsmith {

// The widest accesses that a matrix of rows x cols splits into, in bytes.
inline int widest_pack(const Matrix& x, int64_t rows, int64_t cols, Dtype dtype) {
  int bytes = 16;
  while (bytes > size_of(dtype) && !in_packs(x, rows, cols, dtype, bytes)) bytes /= 2;
  return bytes;
}

// As TileCopy: a thread has the same chunk of 16 bytes of every kStep-th line. It is loaded in pieces.
template <class T, class Tile, int threads>
class NarrowCopy {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T)), kPerLine = Tile::length / kChunk;
  static constexpr int kStep = threads / kPerLine, kRounds = Tile::lines / kStep;
  static constexpr bool kAlongK = Tile::along == Along::k;
  static_assert(Tile::lines % kStep == 0 && kStep % 8 == 0, "an even share of lines that swizzle alike");

 public:
  // `pack`: widest_pack(). The rest as in TileCopy.
  __device__ __forceinline__ NarrowCopy(const Matrix& x, int pack, int64_t batch, int64_t extent, int64_t mn, int64_t k)
      : pack_(pack), step_(kStep * x.ld) {
    mn_left_ = static_cast<int>(extent - mn < Tile::mn ? extent - mn : Tile::mn);
    from_ =
        matrix_of<T>(x, batch) + (kAlongK ? (mn + line()) * x.ld + k + along() : (k + line()) * x.ld + mn + along());
  }

  // Loads the next tile, of which `k_left` values of k exist.
  __device__ __forceinline__ void fetch(int k_left) {
    switch (pack_) {
      case 16:
        return fetch_words<uint4>(k_left);
      case 8:
        return fetch_words<uint2>(k_left);
      case 4:
        return fetch_words<uint32_t>(k_left);
      default:
        return fetch_words<uint16_t>(k_left);
    }
  }

  // Puts what was loaded in its place.
  __device__ __forceinline__ void put(T* tile) const {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      *reinterpret_cast<uint4*>(tile + Tile::moved(Tile::at(line(), along()), r * kStep, 0)) = values_[r];
    }
  }

 private:
  template <class Word>
  __device__ __forceinline__ void fetch_words(int k_left) {
    constexpr int kWidth = static_cast<int>(sizeof(Word) / sizeof(T));
    const int lines_left = kAlongK ? mn_left_ : k_left, along_left = kAlongK ? k_left : mn_left_;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const bool inside = line() + r * kStep < lines_left;
      Word words[kChunk / kWidth];
#pragma unroll
      for (int j = 0; j < kChunk / kWidth; ++j) {
        words[j] = inside && along() + j * kWidth < along_left ? reinterpret_cast<const Word*>(from_)[j] : Word{};
      }
      values_[r] = *reinterpret_cast<const uint4*>(words);
      from_ += step_;
    }
    if (kAlongK) from_ += Tile::k - kRounds * step_;
  }

  // Where the thread's first chunk is in the tile; cheaper to compute again than to keep.
  __device__ __forceinline__ static int line() { return static_cast<int>(threadIdx.x) / kPerLine; }
  __device__ __forceinline__ static int along() { return static_cast<int>(threadIdx.x) % kPerLine * kChunk; }

  const T* from_;
  int pack_, mn_left_;
  int64_t step_;
  uint4 values_[kRounds];
};

}  // namespace warpsmith
