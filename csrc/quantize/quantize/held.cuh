// The packs of a row that a thread holds. Those beyond its end are zeros.
#pragma once

#include "quantize/quantize/values.cuh"
#include "row/packed.h"

namespace warpsmith {

// Which packs those are: first, first + step, ..., of `count` in the row.
struct HeldPacks {
  int first, step, count;

  __device__ int at(int i) const { return i * step + first; }
  __device__ bool has(int i) const { return at(i) < count; }
};

// As values in f32.
template <class Source, int packs>
struct Held {
  static constexpr int kWidth = kPack<typename Source::Value>;
  float y[packs][kWidth] = {};

  __device__ __forceinline__ void read(const QuantizeArgs& a, int64_t row, const HeldPacks& own) {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (own.has(i)) Source::read(y[i], a, row, own.at(i) * kWidth);
    }
  }
  __device__ __forceinline__ void values(float (&to)[kWidth], int i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) to[j] = y[i][j];
  }
};

// As they were read.
template <class T, int packs>
struct Held<PlainValues<T>, packs> {
  Pack<T> x[packs] = {};

  __device__ __forceinline__ void read(const QuantizeArgs& a, int64_t row, const HeldPacks& own) {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (own.has(i)) load(x[i], static_cast<const T*>(a.x) + row * a.x_stride + own.at(i) * kPack<T>);
    }
  }
  __device__ __forceinline__ void values(float (&to)[kPack<T>], int i) {
    keep_packed(x[i]);
    to_float(to, x[i]);
  }
};

}  // namespace warpsmith
