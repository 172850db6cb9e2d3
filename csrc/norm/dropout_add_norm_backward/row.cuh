// What the rungs of dropout_add_norm_backward add to those of add_norm_backward: the way from dh to dx.
#pragma once

#include "norm/add_norm_backward/row.cuh"
#include "norm/dropout_add_norm/row.cuh"
#include "norm/dropout_add_norm_backward/dropout_add_norm_backward.h"

namespace warpsmith {

template <class Types>
struct DropoutAddNormBackwardRows : AddNormBackwardRows<Types> {
  Branch branch;

  explicit DropoutAddNormBackwardRows(const DropoutAddNormBackwardArgs& a)
      : AddNormBackwardRows<Types>(a), branch{a.dropout, a.row_scale, a.cols} {}

  template <int n>
  __device__ __forceinline__ void to_dx(float (&d)[n], int64_t row, int64_t col) const {
    branch.apply(d, row, col);
  }
};

}  // namespace warpsmith
