// Layer norm by its output to the kernels of the norms' gradients; see norm/backward.cuh.
#pragma once

#include "device/ptx/math.h"
#include "norm/backward.cuh"
#include "norm/from_output.cuh"
#include "norm/layer_norm_backward_from_output/layer_norm_backward_from_output.h"

namespace warpsmith {

template <class T, class W>
struct LayerNormBackwardFromOutput : NormBackwardRows<T, W> {
  static constexpr bool kShifted = false, kFromOutput = true, kReadsBias = true, kBiasGradient = true;
  static constexpr int kStats = 0;
  static constexpr bool kExact = sizeof(T) == 2 && sizeof(W) == 2;  // products of two such values fit a float
  struct Sums {
    float scaled = 0.0f;   // grad * weight
    float product = 0.0f;  // grad * (y - bias)
  };
  using Partial = Sums;
  struct Factors {
    float rstd;
    float mean_scaled;   // of grad * weight; lean: times rstd
    float mean_product;  // of grad * (y - bias); lean: times rstd
  };

  using NormBackwardRows<T, W>::NormBackwardRows;

  __device__ __forceinline__ void add(Sums& sums, float y, float grad, float weight, float bias) const {
    if constexpr (kExact) {
      sums.scaled = fmaf(grad, weight, sums.scaled);
    } else {
      sums.scaled += __fmul_rn(grad, weight);
    }
    sums.product = fmaf(grad, y - bias, sums.product);
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
    const float scale = lean ? rstd : 1.0f;
    return {rstd, scale * (row.scaled * this->inverse_cols), scale * (row.product * this->inverse_cols)};
  }

  // 1 / divisible(weight) within 1 ulp; 0 beyond 2^126.
  __device__ __forceinline__ float inverse(float weight) const {
    return ptx::reciprocal_approx_ftz(copysignf(ptx::max_nan(fabsf(weight), this->eps), weight));
  }
  __device__ __forceinline__ float xhat(float y, float weight, float bias, const Factors&) const {
    if constexpr (sizeof(T) == 2) return (y - bias) * inverse(weight);
    return (y - bias) / divisible(weight, this->eps);
  }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, const Factors& row) const {
    if constexpr (lean) return fmaf(-xhat, row.mean_product, fmaf(scaled, row.rstd, -row.mean_scaled));
    return row.rstd * fmaf(-xhat, row.mean_product, scaled - row.mean_scaled);
  }

  __device__ void keep(float*, const Factors&) const {}
  __device__ Factors kept(const float*) const { return {}; }
};

}  // namespace warpsmith
