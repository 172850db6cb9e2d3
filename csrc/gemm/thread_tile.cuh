// The tile of the product that a thread of the CUDA cores computes: tm x tn sums in registers.
#pragma once

#include <type_traits>

#include "device/convert.h"
#include "device/vec.h"
#include "gemm/chunks.cuh"
#include "gemm/gemm.h"
#include "gemm/types.h"

namespace warpsmith {

// What shared memory holds: f16 where sums are f16, otherwise f32, so that 16-bit operands are converted once, on their
// way in, and not by each of the threads that multiply them.
template <class Acc>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(Acc));  // values that one access to shared memory moves

template <class Acc, int tm, int tn>
struct Sums {
  float value[tm][tn] = {};

  __device__ void add_products(const float (&a)[tm], const float (&b)[tn]) {
#pragma unroll
    for (int i = 0; i < tm; ++i) {
#pragma unroll
      for (int j = 0; j < tn; ++j) value[i][j] = fmaf(a[i], b[j], value[i][j]);
    }
  }

  __device__ float at(int i, int j) const { return value[i][j]; }
};

// Neighbouring columns in pairs: HFMA2 computes two sums.
template <int tm, int tn>
struct Sums<f16, tm, tn> {
  __half2 value[tm][tn / 2] = {};

  __device__ void add_products(const f16 (&a)[tm], const f16 (&b)[tn]) {
#pragma unroll
    for (int i = 0; i < tm; ++i) {
      const __half2 twice = __half2half2(a[i]);
#pragma unroll
      for (int j = 0; j < tn / 2; ++j) {
        value[i][j] = __hfma2(twice, __halves2half2(b[2 * j], b[2 * j + 1]), value[i][j]);
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
