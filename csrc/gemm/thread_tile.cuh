// The tile of the product that a thread of the CUDA cores computes: tm x tn sums in registers.
#pragma once

#include <type_traits>

#include "device/convert.h"
#include "device/vec.h"
#include "gemm/gemm.h"
#include "gemm/types.h"
#include "tile/chunks.cuh"

namespace warpsmith {

// What shared memory holds: f16 where sums are f16, otherwise f32, so that 16-bit operands are converted once, on their
// way in, and not by each of the threads that multiply them.
template <class Acc>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(Acc));  // values that one access to shared memory moves

// How a thread's products are added, which a rung's Tile names: what is faster follows from the registers that the compiler
// then finds.
//   rows, columns  the order in which sums in f32 are gone through, there and back. Of the three registers that FFMA reads,
//                  and two banks give one each a cycle, one is that of the multiplication before.
enum class Walk { rows, columns };
//   halves, pairs  how sums in f16, which HFMA2 computes two at a time, take a value of a for both: from half of a register,
//                  which only one of the two pipes that compute HFMA2 can, or from a register that holds it twice.
enum class Left { halves, pairs };

struct Adding {
  static constexpr Walk walk = Walk::rows;
  static constexpr Left left = Left::halves;
};

template <class Acc, int tm, int tn>
struct Sums {
  float value[tm][tn] = {};

  template <class How = Adding>
  __device__ void add_products(const float (&a)[tm], const float (&b)[tn]) {
    constexpr bool kRows = How::walk == Walk::rows;
    constexpr int kLines = kRows ? tm : tn, kLength = kRows ? tn : tm;
#pragma unroll
    for (int line = 0; line < kLines; ++line) {
#pragma unroll
      for (int step = 0; step < kLength; ++step) {
        const int along = line % 2 == 0 ? step : kLength - 1 - step;
        const int i = kRows ? line : along, j = kRows ? along : line;
        value[i][j] = fmaf(a[i], b[j], value[i][j]);
      }
    }
  }

  __device__ float at(int i, int j) const { return value[i][j]; }
};

// Value i twice, by a permutation of bytes: the compiler would take it from half a register.
template <int count>
__device__ __forceinline__ __half2 twice(const f16 (&values)[count], int i) {
  static_assert(count % 2 == 0);
  const __half2 pair = __halves2half2(values[i & ~1], values[i | 1]);
  const uint32_t both = __byte_perm(reinterpret_cast<const uint32_t&>(pair), 0, i % 2 == 0 ? 0x1010 : 0x3232);
  return reinterpret_cast<const __half2&>(both);
}

// Neighbouring columns in pairs.
template <int tm, int tn>
struct Sums<f16, tm, tn> {
  __half2 value[tm][tn / 2] = {};

  template <class How = Adding>
  __device__ void add_products(const f16 (&a)[tm], const f16 (&b)[tn]) {
#pragma unroll
    for (int i = 0; i < tm; ++i) {
      const __half2 left = How::left == Left::pairs ? twice(a, i) : __half2half2(a[i]);
#pragma unroll
      for (int j = 0; j < tn / 2; ++j) {
        value[i][j] = __hfma2(left, __halves2half2(b[2 * j], b[2 * j + 1]), value[i][j]);
      }
    }
  }

  __device__ f16 at(int i, int j) const { return j % 2 == 0 ? value[i][j / 2].x : value[i][j / 2].y; }
};

// Whether sums leave for the product after kMostTerms of k, and the next ones are added to it there, as registers have no
// room for a second set. Results of 16 bits hide what longer sums lose.
template <class T>
inline constexpr bool kCutsSums = std::is_same_v<T, float>;

// Neighbouring values of a row of the product, rounded to T, from sums [i][j...]; `add`ed to those that are there.
template <class T, int width, class Acc, int tm, int tn>
__device__ __forceinline__ void store_sums(T* to, const Sums<Acc, tm, tn>& sums, int i, int j, bool add) {
  Vec<T, width> out;
  if constexpr (std::is_same_v<Acc, T>) {
#pragma unroll
    for (int c = 0; c < width; ++c) out[c] = sums.at(i, j + c);
    if constexpr (kCutsSums<T>) {
      Vec<T, width> before = {};
      if (add) load(before, to);
#pragma unroll
      for (int c = 0; c < width; ++c) out[c] += before[c];
    }
  } else {
    float values[width];
#pragma unroll
    for (int c = 0; c < width; ++c) values[c] = sums.at(i, j + c);
    from_float(out, values);
  }
  store(to, out);
}

}  // namespace warpsmith
