// Matrices whose rows, and whose transpose's rows, begin anywhere.
//
// A tile writes 256 bytes of each of its lines of the result, from a border of 32 bytes in memory on: where a line begins
// beyond one, the tile takes the line's rows by as many earlier. So no sector is written by two tiles, and none in parts but
// at the ends of a line. For that a tile reads a sector's worth of rows more than it writes.
//
// It reads words of 4 bytes as they lie in memory, elements of another column in front and all, and leaves them so in shared
// memory. Rows that fill one word of the result together are `per`; those of one lane and the next are `per` apart, and
// begin at the same byte of a word. A warp therefore takes the same bytes out of the words of all its lanes.
#pragma once

#include "device/ptx/copy.h"
#include "device/warp.h"
#include "transform/transpose/place.cuh"

namespace warpsmith {

inline constexpr int kWordThreads = 256, kWordWarps = kWordThreads / kWarp;
inline constexpr int kWordBytes = 4, kSectorBytes = 32;

template <class T>
struct WordTile {
  static constexpr int size = static_cast<int>(sizeof(T));
  static constexpr int per = kWordBytes / size;                    // elements of a word
  static constexpr int row_words = size == 1 ? kWarp : 2 * kWarp;  // of x
  static constexpr int line_words = 2 * kWarp;                     // of the result
  static constexpr int rows = line_words * per;                    // that are written
  static constexpr int slack = kSectorBytes / size, held = rows + slack;
  // Of elements that are less than a word, the first or last word of a row has some of other columns.
  static constexpr int cols = size == kWordBytes ? row_words : (row_words - 1) * per;

  // Rows of one word of the result lie a plane apart; in a plane, those of neighbouring lanes in neighbouring banks.
  static constexpr int pitch = row_words + 1, plane = held / per * pitch;
  uint32_t words[per * plane];

  __device__ __forceinline__ static int place(int row) { return row % per * plane + row / per * pitch; }
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

// A word of the result of one element from each of the words, that from byte[i] on.
__device__ __forceinline__ uint32_t gather_bytes(const uint32_t (&words)[1], const uint32_t (&)[1]) { return words[0]; }

__device__ __forceinline__ uint32_t gather_bytes(const uint32_t (&words)[2], const uint32_t (&byte)[2]) {
  return __byte_perm(words[0], words[1], 0x5410 + 0x11 * byte[0] + 0x1100 * byte[1]);
}

__device__ __forceinline__ uint32_t gather_bytes(const uint32_t (&words)[4], const uint32_t (&byte)[4]) {
  const uint32_t low = __byte_perm(words[0], words[1], 0x40 + byte[0] + 0x10 * byte[1]);
  const uint32_t high = __byte_perm(words[2], words[3], 0x40 + byte[2] + 0x10 * byte[3]);
  return __byte_perm(low, high, 0x5410);
}

// The tiles: of a line that begins right before a border, the last row lies `slack` - 1 rows further on.
template <class T>
TileGrid word_grid(TransposeArgs a) {
  a.rows += WordTile<T>::slack - 1;
  return {a, WordTile<T>::rows, WordTile<T>::cols};
}

template <class T>
__device__ __forceinline__ void transpose_words(const TransposeArgs& a, const TileGrid& grid, WordTile<T>& tile) {
  using Tile = WordTile<T>;
  constexpr int kSize = Tile::size, kPer = Tile::per;
  static_assert(Tile::held % kWordWarps == 0 && kWordWarps % kPer == 0);
  const TilePlace at = place_of(a.batch, grid, Tile::rows, Tile::cols);
  const int64_t first_row = at.row - Tile::slack;  // that the tile holds
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t x_pitch = a.x_row * kSize, y_pitch = a.y_col * kSize;  // bytes
  const auto* x = static_cast<const unsigned char*>(a.x) + (at.matrix.x + first_row * a.x_row + at.col) * kSize;

  // read rows of x
  const int64_t before = at.col * kSize, after = (a.cols - at.col) * kSize;  // bytes of a row on either side
  const bool rows_inside = first_row >= 0 && first_row + Tile::held <= a.rows;
  if (rows_inside && (kPer == 1 || before > 0) && after >= Tile::row_words * kWordBytes) {
    const unsigned char* line = x + warp * x_pitch;
    uint32_t* to = tile.words + Tile::place(warp) + lane;
#pragma unroll 6
    for (int i = 0; i < Tile::held / kWordWarps; ++i) {
      const auto* from = reinterpret_cast<const uint32_t*>(line - word_offset(line)) + lane;
#pragma unroll
      for (int word = 0; word < Tile::row_words; word += kWarp) ptx::cp_async_if(true, to + word, from + word);
      line += kWordWarps * x_pitch;
      to += kWordWarps / kPer * Tile::pitch;
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  } else {
#pragma unroll 2
    for (int row = warp; row < Tile::held; row += kWordWarps) {
      const bool there = first_row + row >= 0 && first_row + row < a.rows;
      const unsigned char* line = x + row * x_pitch;
      const int offset = word_offset(line);
#pragma unroll
      for (int word = 0; word < Tile::row_words; word += kWarp) {
        const int begin = (word + lane) * kWordBytes - offset;
        tile.words[Tile::place(row) + word + lane] =
            there ? read_word<T>(line + begin, -before - begin, after - begin) : 0;
      }
    }
  }
  __syncthreads();

  // write lines of the result
  const int cols = static_cast<int>(min(a.cols - at.col, int64_t{Tile::cols}));
  const bool whole = at.row >= Tile::slack && at.row + Tile::rows <= a.rows;
  const auto x_begin = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(x)), x_step = static_cast<uint32_t>(x_pitch);
  unsigned char* line =
      static_cast<unsigned char*>(a.y) + (at.matrix.y + at.col * a.y_col + at.row) * kSize + warp * y_pitch;
  const uint32_t* own = tile.words + lane * Tile::pitch;
#pragma unroll 2
  for (int col = warp; col < cols; col += kWordWarps, line += kWordWarps * y_pitch) {
    const int beyond = static_cast<int>(reinterpret_cast<uintptr_t>(line) % kSectorBytes);  // the border
    const int first = Tile::slack - beyond / kSize;                                         // row that the tile holds
    const uint32_t* from[kPer];
    uint32_t byte[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const uint32_t offset = (x_begin + static_cast<uint32_t>(first + i) * x_step) % kWordBytes;
      const uint32_t place = static_cast<uint32_t>(col * kSize) + offset;
      from[i] = own + Tile::place(first + i) + place / kWordBytes;
      byte[i] = place % kWordBytes;
    }
    uint32_t result[Tile::line_words / kWarp];
#pragma unroll
    for (int part = 0; part < Tile::line_words / kWarp; ++part) {
      uint32_t words[kPer];
#pragma unroll
      for (int i = 0; i < kPer; ++i) words[i] = from[i][part * kWarp * Tile::pitch];
      result[part] = gather_bytes(words, byte);
    }
#pragma unroll
    for (int part = 0; part < Tile::line_words / kWarp; ++part) {
      const int begin = (part * kWarp + lane) * kWordBytes - beyond;
      if (whole) {
        *reinterpret_cast<uint32_t*>(line + begin) = result[part];
      } else {
        write_word<T>(line + begin, result[part], -at.row * kSize - begin, (a.rows - at.row) * kSize - begin);
      }
    }
  }
}

}  // namespace warpsmith
