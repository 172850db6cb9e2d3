// What the rungs of dropout_add_norm and its gradients add to those of add_norm: what becomes of x before the addition.
#pragma once

#include "norm/add_norm/row.cuh"
#include "norm/dropout_add_norm/dropout_add_norm.h"

namespace warpsmith {

// Dropout with what is kept scaled up, and a factor for each row.
struct Branch {
  Dropout dropout;
  const float* row_scale;  // [rows] or null
  int64_t cols;

  // n neighbours, of which the first stands at (row, col).
  template <int n>
  __device__ __forceinline__ void apply(float (&values)[n], int64_t row, int64_t col) const {
    const float factor = row_scale == nullptr ? dropout.scale : dropout.scale * row_scale[row];
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] *= factor;
    if (!dropout.active) return;
    const int64_t element = row * cols + col;
    if constexpr (n == 1) {
      if (!dropout.keeps(element)) values[0] = 0.0f;
    } else {
      // four by four, so that one state of the generator lives at a time
#pragma unroll
      for (int i = 0; i < n; i += 4) {
        bool kept[4];
        dropout.keeps(kept, element + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[i + j] = kept[j] ? values[i + j] : 0.0f;
      }
    }
  }
};

template <class Types>
struct DropoutAddNormRows : AddNormRows<Types> {
  using typename Types::R;
  using typename Types::T;

  static constexpr bool kCommon = false;  // few tiles will do

  Branch branch;

  explicit DropoutAddNormRows(const DropoutAddNormArgs& a)
      : AddNormRows<Types>(a), branch{a.dropout, a.row_scale, a.cols} {}

  template <int n>
  __device__ __forceinline__ Vec<R, n> add(const Vec<T, n>& x, const Vec<R, n>& residual, int64_t row,
                                           int64_t col) const {
    float values[n], sums[n];
    to_float(values, x);
    to_float(sums, residual);
    branch.apply(values, row, col);
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] += values[i];
    Vec<R, n> h;
    from_float(h, sums);
    return h;
  }
};

}  // namespace warpsmith
