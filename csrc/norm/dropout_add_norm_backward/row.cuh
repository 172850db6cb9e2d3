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

// The same for a thread that walks over rows and has several packs of each: what these share is found once a row, and
// row_scale is read a row ahead.
template <class Types>
struct DropoutAddNormBackwardWalk : DropoutAddNormBackwardRows<Types> {
  using DropoutAddNormBackwardRows<Types>::DropoutAddNormBackwardRows;

  struct Way {
    uint32_t low, high;  // of the generator's groups of four elements before the thread's first in the row
    float factor;        // of the row
    float coming;        // row_scale of the next

    __device__ __forceinline__ int64_t before() const { return static_cast<int64_t>((uint64_t{high} << 32 | low) * 4); }
  };

  __device__ __forceinline__ float scale_of(int64_t row) const {
    return this->branch.row_scale == nullptr || row >= this->rows ? 1.0f : this->branch.row_scale[row];
  }
  // Before the first row.
  __device__ __forceinline__ void set_out(Way& way, int64_t row) const { way.coming = scale_of(row); }
  // With every row. col: of the thread's first pack.
  __device__ __forceinline__ void enter(Way& way, int64_t row, int col, int64_t next) const {
    const uint64_t group = static_cast<uint64_t>(row * this->cols + col) / 4;
    way.low = low_word(group);
    way.high = high_word(group);
    way.factor = this->branch.dropout.scale * way.coming;
    way.coming = scale_of(next);
  }
  // n neighbours, of which the first stands `ahead` elements behind the first of that pack.
  template <int n>
  __device__ __forceinline__ void to_dx(float (&d)[n], const Way& way, int ahead) const {
    const Dropout& dropout = this->branch.dropout;
#pragma unroll
    for (int i = 0; i < n; ++i) d[i] *= way.factor;
    if (!dropout.active) return;
    const uint32_t groups = ahead / 4, low = way.low + groups, high = way.high + (low < groups ? 1 : 0);
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      bool kept[4];
      dropout.keeps_group(kept, uint64_t{high} << 32 | (low | i / 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) d[i + j] = kept[j] ? d[i + j] : 0.0f;
    }
  }
};

}  // namespace warpsmith
