// What the rungs of rms_norm_with_rstd share: rms_norm's row, which writes its rstd beside.
#pragma once

#include "norm/rms_norm/row.cuh"
#include "norm/rms_norm_with_rstd/rms_norm_with_rstd.h"

namespace warpsmith {

template <class T, class W>
struct RmsNormWithRstd : RmsNorm<T, W> {
  float* rstd;  // [rows]

  // An f32 weight of 16-bit values takes more registers than there are.
  template <int packs>
  static constexpr bool kHoldsColumns = packs * sizeof(typename RmsNorm<T, W>::Columns) <= 8 * 16;

  explicit RmsNormWithRstd(const RmsNormWithRstdArgs& a) : RmsNorm<T, W>(a), rstd(a.rstd) {}

  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[1], float scale,
                                         const typename RmsNorm<T, W>::Columns& columns) const {
    if (col == 0) rstd[row] = scale;
    RmsNorm<T, W>::finish(row, col, x, scale, columns);
  }
};

// A sum with what rounding loses carried along (Kahan 1965): rstd is one value a row, whose error nothing averages.
struct CompensatedSquares {
  float sum = 0.0f, lost = 0.0f;

  __device__ __forceinline__ void add(float term) {
    const float wanted = term - lost, next = sum + wanted;
    lost = next == INFINITY ? 0.0f : (next - sum) - wanted;
    sum = next;
  }
};

}  // namespace warpsmith
