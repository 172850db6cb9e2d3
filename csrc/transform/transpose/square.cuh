// Squares of 16 bytes a side that a thread transposes in its registers: it reads as many packs of a row each, and writes as
// many packs of a column each.
//
// Elements of 4 bytes: registers only change their names. Of 2 bytes: each register of the result takes a half from two,
// one PRMT. Of 1 byte: two stages, of pairs of bytes and of pairs of pairs, two PRMT for each.
#pragma once

#include <cstdint>

#include "device/vec.h"

namespace warpsmith {

template <class T>
struct Square {
  static constexpr int side = 16 / static_cast<int>(sizeof(T));

  // Rows `group` * per to `group` * per + per - 1 of the source, which fill word `group` of each result.
  static constexpr int per = 4 / static_cast<int>(sizeof(T));

  uint4 column[side];  // of the source, each a pack of the result

  __device__ __forceinline__ void set(int j, int group, uint32_t word) {
    (group == 0 ? column[j].x : group == 1 ? column[j].y : group == 2 ? column[j].z : column[j].w) = word;
  }

  // `rows`: the packs of those rows. `group` is known when the loop around is unrolled.
  __device__ __forceinline__ void take(int group, const uint4 (&rows)[per]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t word[per];  // of each row
#pragma unroll
      for (int i = 0; i < per; ++i) word[i] = k == 0 ? rows[i].x : k == 1 ? rows[i].y : k == 2 ? rows[i].z : rows[i].w;
      turn(k * per, group, word);
    }
  }

 private:
  // Columns `first` on, of which each row has one word.
  __device__ __forceinline__ void turn(int first, int group, const uint32_t (&word)[1]) { set(first, group, word[0]); }

  __device__ __forceinline__ void turn(int first, int group, const uint32_t (&word)[2]) {
    set(first, group, __byte_perm(word[0], word[1], 0x5410));
    set(first + 1, group, __byte_perm(word[0], word[1], 0x7632));
  }

  __device__ __forceinline__ void turn(int first, int group, const uint32_t (&word)[4]) {
    const uint32_t upper01 = __byte_perm(word[0], word[1], 0x5140), upper23 = __byte_perm(word[2], word[3], 0x5140);
    const uint32_t lower01 = __byte_perm(word[0], word[1], 0x7362), lower23 = __byte_perm(word[2], word[3], 0x7362);
    set(first, group, __byte_perm(upper01, upper23, 0x5410));
    set(first + 1, group, __byte_perm(upper01, upper23, 0x7632));
    set(first + 2, group, __byte_perm(lower01, lower23, 0x5410));
    set(first + 3, group, __byte_perm(lower01, lower23, 0x7632));
  }
};

// Fills a square from `pack(i)`, which returns the pack of row i, and hands each of its columns to `store(j, pack)`.
template <class T, class Load, class Store>
__device__ __forceinline__ void turn_square(Load pack, Store store) {
  using Of = Square<T>;
  Of square;
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    uint4 rows[Of::per];
#pragma unroll
    for (int i = 0; i < Of::per; ++i) rows[i] = pack(group * Of::per + i);
    square.take(group, rows);
  }
#pragma unroll
  for (int j = 0; j < Of::side; ++j) store(j, square.column[j]);
}

}  // namespace warpsmith
