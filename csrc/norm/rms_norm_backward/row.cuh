// RMS norm to the kernels of the norms' gradients; see norm/backward.cuh.
#pragma once

#include "norm/backward.cuh"
#include "norm/rms_norm_backward/rms_norm_backward.h"

namespace warpsmith {

template <class T, class W>
struct RmsNormBackward : NormBackwardRows<T, W> {
  static constexpr bool kShifted = false, kFromOutput = false, kReadsBias = false, kBiasGradient = false;
  static constexpr int kStats = 1;
  struct Sums {
    float square = 0.0f;   // x^2
    float product = 0.0f;  // grad * weight * x
  };
  using Partial = Sums;
  struct Factors {
    float scale;  // 1 / rms
    float mean;   // of grad * weight * xhat
  };

  using NormBackwardRows<T, W>::NormBackwardRows;

  __device__ __forceinline__ void add(Sums& sums, float x, float grad, float weight, float) const {
    sums.square = fmaf(x, x, sums.square);
    sums.product = fmaf(__fmul_rn(grad, weight), x, sums.product);
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
  __device__ __forceinline__ Factors factors(const Partial& row, float) const {
    const float inverse_count = __frcp_rn(static_cast<float>(this->cols));
    const float scale = reciprocal_rms(row.square, inverse_count, this->eps);
    return {scale, scale * row.product * inverse_count};
  }

  __device__ __forceinline__ float xhat(float x, float, float, const Factors& row) const { return x * row.scale; }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, const Factors& row) const {
    return row.scale * fmaf(-xhat, row.mean, scaled);
  }

  __device__ void keep(float* stats, const Factors& row) const { stats[0] = row.scale; }
  __device__ Factors kept(const float* stats) const { return {stats[0], 0.0f}; }
};

}  // namespace warpsmith
