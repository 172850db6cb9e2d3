// An operand's tiles from global to shared memory, 16 bytes a copy, zeros where the matrix ends.
#pragma once

#include <cstdint>

#include "device/ptx/copy.h"
#include "tile/matrix.h"
#include "tile/operand_tile.h"

namespace warpsmith {

template <class T>
__device__ __forceinline__ const T* matrix_of(const Matrix& x, int64_t batch) {
  return static_cast<const T*>(x.data) + batch * x.batch;
}

// A thread's part in copying one tile after another along k. Every thread has the same chunk of every kStep-th line.
// Lines are whole chunks of 16 bytes: none crosses the end of its line.
template <class T, class Tile, int threads>
class TileCopy {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T)), kPerLine = Tile::length / kChunk;
  static constexpr int kChunks = Tile::lines * kPerLine, kLines = threads / kPerLine;
  static constexpr int kStep = kLines < Tile::lines ? kLines : Tile::lines;
  static_assert(threads % kPerLine == 0 && (kChunks % threads == 0 || kChunks < threads), "an even share");
  static_assert(kStep % 8 == 0 || kChunks <= threads, "lines that swizzle alike");
  // Eight threads store at once. Where these would be several short lines, padded by a chunk each, lines that follow one
  // another would meet in a bank; those so many apart do not.
  static constexpr int kAtOnce = kPerLine < 8 ? 8 / kPerLine : 1;
  static constexpr bool kPads = Tile::stride == Tile::length + kChunk;

 public:
  static constexpr int kRounds = kChunks <= threads ? 1 : kChunks / threads;

  // `extent`: the operand's m or n, of which the tile starts at `mn`. The first tile starts at `k`.
  __device__ __forceinline__ TileCopy(const Matrix& x, int64_t batch, int64_t extent, int64_t mn, int64_t k) {
    int line = static_cast<int>(threadIdx.x) / kPerLine;
    const int i = static_cast<int>(threadIdx.x) % kPerLine * kChunk;
    if constexpr (kPads && kAtOnce > 1) {
      line = line / 8 * 8 + line % kAtOnce * kPerLine + line % 8 / kAtOnce;
    }
    constexpr bool kAlongK = Tile::along == Along::k;
    to_ = Tile::at(line, i);
    k_ = kAlongK ? i : line;
    step_ = kStep * x.ld;
    from_ = matrix_of<T>(x, batch) + (kAlongK ? (mn + line) * x.ld + k + i : (k + line) * x.ld + mn + i);
    inside_ = 0;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      inside_ |= (mn + (kAlongK ? line + r * kStep : i) < extent ? 1u : 0u) << r;
    }
  }

  // Starts copying part `part` of `parts` of the tile at hand, of which `k_left` values of k exist.
  __device__ __forceinline__ void start(T* tile, int64_t k_left, int part = 0, int parts = 1) {
    if (idle()) return;
    const int left = clipped(k_left);
#pragma unroll
    for (int r = kRounds * part / parts; r < kRounds * (part + 1) / parts; ++r) {
      ptx::cp_async_zfill(chunk(tile, r), reinterpret_cast<const uint4*>(from_), valid(r, left));
      from_ += step_;
    }
  }

  // The same through registers: loads, all of them under way when the first is waited for, and stores.
  struct Held {
    uint4 values[kRounds];
  };
  __device__ __forceinline__ Held fetch(int64_t k_left) {
    Held held{};
    const int left = clipped(k_left);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (!idle() && valid(r, left)) held.values[r] = *reinterpret_cast<const uint4*>(from_);
      from_ += step_;
    }
    return held;
  }
  __device__ __forceinline__ void put(T* tile, const Held& held) const {
    if (idle()) return;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) *chunk(tile, r) = held.values[r];
  }

  // On to the next tile, after all of the one at hand. Along m or n, the lines of the next follow.
  __device__ __forceinline__ void advance() {
    if (Tile::along == Along::k) from_ += Tile::k - kRounds * step_;
  }

 protected:
  __device__ __forceinline__ static bool idle() {
    return kChunks < threads && static_cast<int>(threadIdx.x) >= kChunks;
  }

  __device__ __forceinline__ static int clipped(int64_t k_left) {
    return static_cast<int>(k_left < Tile::k ? k_left : Tile::k);
  }

  __device__ __forceinline__ static constexpr int k_step(int r) { return Tile::along == Along::k ? 0 : r * kStep; }

  __device__ __forceinline__ bool valid(int r, int left) const {
    return (inside_ >> r & 1u) != 0 && k_ + k_step(r) < left;
  }

  __device__ __forceinline__ uint4* chunk(T* tile, int r) const {
    return reinterpret_cast<uint4*>(tile + Tile::moved(to_, r * kStep, 0));
  }

  const T* from_;    // the first chunk of the tile at hand
  int64_t step_;     // elements from one of the thread's lines to the next
  int to_, k_;       // where the first chunk goes, and its k in the tile
  uint32_t inside_;  // bit r: line r is within m or n
};

}  // namespace warpsmith
