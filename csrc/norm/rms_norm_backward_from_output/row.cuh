// RMS norm by its output to the kernels of the norms' gradients; see norm/backward.cuh.
#pragma once

#include "norm/backward.cuh"
#include "norm/from_output.cuh"
#include "norm/rms_norm_backward_from_output/rms_norm_backward_from_output.h"

namespace warpsmith {

template <class T, class W>
struct RmsNormBackwardFromOutput : NormBackwardRows<T, W> {
  static constexpr bool kShifted = false, kFromOutput = true, kReadsBias = false, kBiasGradient = false;
  static constexpr int kStats = 0;
  struct Sums {
    float product = 0.0f;  // grad * y
  };
  using Partial = Sums;
  struct Factors {
    float rstd, mean;  // mean of grad * y
  };

  using NormBackwardRows<T, W>::NormBackwardRows;

  __device__ __forceinline__ void add(Sums& sums, float y, float grad, float, float) const {
    sums.product = fmaf(grad, y, sums.product);
  }
  template <int lanes>
  __device__ __forceinline__ Partial over_lanes(const Sums& sums, const WarpShare&) const {
    return warp_sums<lanes>(sums);
  }
  template <int most>
  __device__ __forceinline__ Partial combine(const Partial* parts, int count) const {
    return total_of<most>(parts, count);
  }
  template <bool lean>
  __device__ __forceinline__ Factors factors(const Partial& row, float rstd) const {
    return {rstd, row.product * this->inverse_cols};
  }

  __device__ __forceinline__ float xhat(float y, float weight, float, const Factors&) const {
    return quotient<T>(y, divisible(weight, this->eps));
  }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, const Factors& row) const {
    return row.rstd * fmaf(-xhat, row.mean, scaled);
  }

  __device__ void keep(float*, const Factors&) const {}
  __device__ Factors kept(const float*) const { return {}; }
};

}  // namespace warpsmith
