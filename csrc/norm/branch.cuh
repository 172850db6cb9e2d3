// What becomes of the branch that joins a residual stream.
#pragma once

#include "device/philox.h"

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

}  // namespace warpsmith
