// The variance of rows that the registers of those who share them hold: two passes over what was read once, so that
// nothing has to be joined but two sums.
#pragma once

#include <bit>

#include "reduce/reduce_dim/reduce.cuh"

namespace warpsmith {

// Calls body.template operator()<packs>() with how many packs each of `threads` has to hold of a row of `count`, at least;
// false where they are too many for registers.
template <class Body>
bool visit_held_packs(int64_t count, int64_t threads, Body&& body) {
  const auto one = [&]<int packs>() {
    if (count > threads * packs) return false;
    body.template operator()<packs>();
    return true;
  };
  return one.template operator()<4>() || one.template operator()<8>() || one.template operator()<16>();
}

// Values of a pack less the shift.
template <class T>
__device__ __forceinline__ void shifted_values(float (&to)[kPack<T>], const Pack<T>& from, float shift) {
  to_float(to, from);
#pragma unroll
  for (float& value : to) value -= shift;
}

// So that values are converted again instead of being kept beside what they come from.
template <class T>
__device__ __forceinline__ void forget_values(Pack<T>& pack) {
  uint4 words = std::bit_cast<uint4>(pack);
  asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  pack = std::bit_cast<Pack<T>>(words);
}

// The sum of squares of a row's [n] values less their mean; the first can be read even where n is 0. Thread `tid` of
// `threads` holds every threads-th pack, at most `packs`; sum_up(x) adds x up over these threads, and each gets the same
// bits.
template <int packs, class Aligned, class T, class SumUp>
__device__ __forceinline__ float squared_deviations(const T* row, int n, int tid, int threads, SumUp sum_up) {
  constexpr int kWidth = kPack<T>;
  const int whole = n / kWidth;
  const auto inside = [&](int i) { return tid + i * threads < whole; };
  Pack<T> held[packs];
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    if (inside(i)) load_pack<Aligned>(held[i], row + (tid + i * threads) * kWidth);
  }
  // Without a test: there are seven predicates, and a load that has to wait for one of them waits for the shift too.
  const float shift = to_float(*row), share = 1.0f / static_cast<float>(n);
  // Adds up over the row: term(x, sum) is sum with what a value less the shift brings.
  const auto add_up = [&](auto term) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (!inside(i)) continue;
      float values[kWidth], part = 0.0f;
      shifted_values<T>(values, held[i], shift);
#pragma unroll
      for (float value : values) part = term(value, part);
      sum += part;
    }
    for (int col = whole * kWidth + tid; col < n; col += threads) sum = term(to_float(row[col]) - shift, sum);
    return sum_up(sum);
  };

  const float mean = add_up([share](float x, float sum) { return fmaf(x, share, sum); });
  if constexpr (packs * kWidth > 64) {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (inside(i)) forget_values<T>(held[i]);
    }
  }
  return add_up([mean](float x, float sum) { return fmaf(x - mean, x - mean, sum); });
}

}  // namespace warpsmith
