// Places in a mask that broadcasts.
#pragma once

#include "device/fast_divide.h"
#include "transform/masked_fill/masked_fill.h"

namespace warpsmith {

// Where the mask of a value is, by the dimensions along which the mask moves: the last `dims` of x.
struct MaskPlaces {
  FastDivide by[kMaskDims];
  int dims = 0;

  explicit MaskPlaces(const MaskedFillArgs& a) {
    for (int d = 0; d < kMaskDims; ++d) {
      by[d] = FastDivide(static_cast<uint64_t>(a.sizes[d]));
      if (a.mask_strides[d] != 0) dims = d + 1;
    }
  }
  __device__ __forceinline__ int64_t of(const MaskedFillArgs& a, int64_t value) const {
    auto rest = static_cast<uint64_t>(value);
    int64_t at = 0;
#pragma unroll
    for (int d = 0; d < kMaskDims; ++d) {
      if (d >= dims) break;
      const uint64_t above = by[d].quotient(rest);
      at += static_cast<int64_t>(rest - above * by[d].divisor) * a.mask_strides[d];
      rest = above;
    }
    return at;
  }
};

}  // namespace warpsmith
