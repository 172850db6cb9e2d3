// Tiles of 128 x 128 bytes of matrices whose rows, and whose transpose's rows, begin anywhere: accesses of aligned words of
// 4 bytes on both sides. A warp reads a line of x in words as they lie in memory and moves them to where the line begins; it
// puts words of the result together from the tile, and moves them to where these lie in memory. What sticks out at either
// end of a line goes element by element.
#pragma once

#include "device/warp.h"
#include "transform/transpose/place.cuh"

namespace warpsmith {

inline constexpr int kWordThreads = 256, kWordWarps = kWordThreads / kWarp;
inline constexpr int kWordBytes = 4;
inline constexpr int kLineWords = kWarp;  // a lane each

template <class T>
struct WordTile {
  static constexpr int per = kWordBytes / static_cast<int>(sizeof(T));  // elements of a word
  static constexpr int side = kLineWords * per;
  uint32_t words[side * kLineWords];

  // Rows in groups of `per`: a lane reads one group's, all lanes the same word of the row.
  __device__ __forceinline__ static int place(int row, int word) {
    return row * kLineWords + (word ^ (row / per % kLineWords));
  }
};

__device__ __forceinline__ int word_offset(const void* pointer) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(pointer) % kWordBytes);
}

// The word at `at` (aligned). Of it, bytes `from` to `to` - 1 may be read; the others are 0.
template <class T>
__device__ __forceinline__ uint32_t read_word(const unsigned char* at, int64_t from, int64_t to) {
  if (from <= 0 && to >= kWordBytes) return *reinterpret_cast<const uint32_t*>(at);
  uint32_t word = 0;
#pragma unroll
  for (int b = 0; b < kWordBytes; b += static_cast<int>(sizeof(T))) {
    if (b >= from && b < to) word |= uint32_t{*reinterpret_cast<const T*>(at + b)} << (8 * b);
  }
  return word;
}

template <class T>
__device__ __forceinline__ void write_word(unsigned char* at, uint32_t word, int64_t from, int64_t to) {
  if (from <= 0 && to >= kWordBytes) {
    *reinterpret_cast<uint32_t*>(at) = word;
    return;
  }
#pragma unroll
  for (int b = 0; b < kWordBytes; b += static_cast<int>(sizeof(T))) {
    if (b >= from && b < to) *reinterpret_cast<T*>(at + b) = static_cast<T>(word >> (8 * b));
  }
}

// `words` of the tile's columns first * per on, one word each, from the same word of `per` rows.
__device__ __forceinline__ void turn_words(uint32_t (&words)[1]) {}

__device__ __forceinline__ void turn_words(uint32_t (&words)[2]) {
  const uint32_t low = __byte_perm(words[0], words[1], 0x5410), high = __byte_perm(words[0], words[1], 0x7632);
  words[0] = low;
  words[1] = high;
}

__device__ __forceinline__ void turn_words(uint32_t (&words)[4]) {
  const uint32_t a = __byte_perm(words[0], words[1], 0x5140), b = __byte_perm(words[2], words[3], 0x5140);
  const uint32_t c = __byte_perm(words[0], words[1], 0x7362), d = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(a, b, 0x5410);
  words[1] = __byte_perm(a, b, 0x7632);
  words[2] = __byte_perm(c, d, 0x5410);
  words[3] = __byte_perm(c, d, 0x7632);
}

template <class T>
__device__ __forceinline__ void transpose_words(const TransposeArgs& a, const TileGrid& grid, WordTile<T>& tile) {
  using Tile = WordTile<T>;
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kUnroll = Tile::side / kWordWarps < 8 ? Tile::side / kWordWarps : 8;  // lines of a warp on their way
  const TilePlace at = place_of(a.batch, grid, Tile::side, Tile::side);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto* x = static_cast<const unsigned char*>(a.x) + (at.matrix.x + at.row * a.x_row + at.col) * kSize;
  auto* y = static_cast<unsigned char*>(a.y) + (at.matrix.y + at.col * a.y_col + at.row) * kSize;
  const int64_t before = at.col * kSize,
                after = (a.cols - at.col) * kSize;  // bytes of a row on either side of the tile's
  const int rows = static_cast<int>(min(a.rows - at.row, int64_t{Tile::side}));
  const int cols = static_cast<int>(min(a.cols - at.col, int64_t{Tile::side}));

  // read lines of x, and move their words to where the line begins
  for (int first = warp; first < Tile::side; first += kWordWarps * kUnroll) {
    uint32_t word[kUnroll], next[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = first + u * kWordWarps;
      const unsigned char* line = x + row * a.x_row * kSize;
      const int offset = word_offset(line), begin = lane * kWordBytes - offset;
      word[u] = next[u] = 0;
      if (row < rows) {
        word[u] = read_word<T>(line + begin, -before - begin, after - begin);
        if (kSize < kWordBytes && lane == kWarp - 1 && offset > 0) {
          const int further = begin + kWordBytes;
          next[u] = read_word<T>(line + further, -before - further, after - further);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = first + u * kWordWarps;
      if constexpr (kSize < kWordBytes) {
        const int offset = word_offset(x + row * a.x_row * kSize);
        const uint32_t neighbour = __shfl_down_sync(kAllLanes, word[u], 1);
        word[u] = __byte_perm(word[u], lane == kWarp - 1 ? next[u] : neighbour, 0x3210 + 0x1111 * offset);
      }
      tile.words[Tile::place(row, lane)] = word[u];
    }
  }
  __syncthreads();

  // turn over, and move words of the result to where they lie in memory
  for (int group = warp; group * Tile::per < cols; group += kWordWarps) {
    uint32_t words[Tile::per];
#pragma unroll
    for (int i = 0; i < Tile::per; ++i) words[i] = tile.words[Tile::place(lane * Tile::per + i, group)];
    turn_words(words);
#pragma unroll
    for (int i = 0; i < Tile::per; ++i) {
      const int col = group * Tile::per + i;
      unsigned char* line = y + col * a.y_col * kSize;
      const int offset = word_offset(line), begin = lane * kWordBytes - offset;
      uint32_t word = words[i];
      if constexpr (kSize < kWordBytes) {
        const uint32_t neighbour = __shfl_up_sync(kAllLanes, word, 1);
        word = __byte_perm(neighbour, word, 0x7654 - 0x1111 * offset);
      }
      if (col >= cols) continue;
      const int end = rows * kSize;
      write_word<T>(line + begin, word, -begin, end - begin);
      if (kSize < kWordBytes && lane == kWarp - 1 && offset > 0) {
        const int further = begin + kWordBytes;  // the last word's upper bytes
        write_word<T>(line + further, words[i] >> (8 * (kWordBytes - offset)), 0, end - further);
      }
    }
  }
}

}  // namespace warpsmith
