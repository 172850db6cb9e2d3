// What the rungs of dropout_add_norm and its gradients add to those of add_norm: what becomes of x before the addition.
#pragma once

#include "norm/add_norm/row.cuh"
#include "norm/branch.cuh"
#include "norm/dropout_add_norm/dropout_add_norm.h"

namespace warpsmith {

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
