// One value in the place of those that a mask names: y = mask ? value : x.
#pragma once

#include <cstdint>

#include "host/dtype.h"

namespace warpsmith {

inline constexpr int kMaskDims = 4;

struct MaskedFillArgs {
  const void* x;                    // dense, of any shape
  void* y;                          // the same
  const uint8_t* mask;              // bytes of 0 or 1
  int64_t n;                        // values
  int64_t sizes[kMaskDims];         // of x, the last one first; 1 where it has no such dimension
  int64_t mask_strides[kMaskDims];  // of the mask along them; 0 where it broadcasts
  bool same;                        // the mask lies as x does
  uint32_t bits;                    // of the value, in the low bytes
  int size;                         // bytes of a value
};

}  // namespace warpsmith
