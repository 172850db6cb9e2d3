// Which of the result's rows and columns came of a value.
#pragma once

#include "vision/upsample_nearest2d/backward/upsample_nearest2d_backward.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {

// Rows and columns of the result for one of x, about.
struct UpsampleInverse {
  float h, w;

  explicit UpsampleInverse(const UpsampleArgs& a) : h(1.0f / a.scale_h), w(1.0f / a.scale_w) {}
};

template <class Int>
struct UpsampleRegion {
  Int first_row, end_row, first_col, end_col;

  __device__ __forceinline__ UpsampleRegion(const UpsampleArgs& a, const UpsampleInverse& inverse,
                                            const ImagePlace<Int>& at) {
    const Int h = static_cast<Int>(a.h), w = static_cast<Int>(a.w);
    const Int out_h = static_cast<Int>(a.out_h), out_w = static_cast<Int>(a.out_w);
    first_row = upsample_first(at.row, a.scale_h, inverse.h, h, out_h);
    end_row = upsample_first(at.row + 1, a.scale_h, inverse.h, h, out_h);
    first_col = upsample_first(at.col, a.scale_w, inverse.w, w, out_w);
    end_col = upsample_first(at.col + 1, a.scale_w, inverse.w, w, out_w);
  }
};

}  // namespace warpsmith
