// Layer norm to the kernels of the norms' gradients; see norm/backward.cuh.
//   One sweep gathers everything, sums of deviations from a value near the mean: what each lane of the warp reads first,
//   averaged. Where the mean is far from it after all, the sums say how far. Warps are merged around the differences of
//   their means. So nothing cancels, however large the mean is beside the deviation.
// Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance: Analysis and Recommendations".
#pragma once

#include "device/moments.h"
#include "norm/backward.cuh"
#include "norm/layer_norm_backward/layer_norm_backward.h"

namespace warpsmith {

template <class T, class W>
struct LayerNormBackward : NormBackwardRows<T, W> {
  static constexpr bool kShifted = true, kFromOutput = false, kReadsBias = false, kBiasGradient = true;
  static constexpr int kStats = 2;
  struct Sums {
    float shift = 0.0f;
    float deviation = 0.0f;  // x - shift
    float square = 0.0f;     // (x - shift)^2
    float scaled = 0.0f;     // grad * weight
    float product = 0.0f;    // grad * weight * (x - shift)
  };
  struct Partial {
    float count, mean;  // of x
    float square;       // sum of (x - mean)^2
    float scaled;       // sum of grad * weight
    float product;      // sum of grad * weight * (x - mean)
  };
  struct Factors {
    float mean, rstd;    // of x
    float mean_scaled;   // of grad * weight; lean: times rstd
    float mean_product;  // of grad * weight * xhat; lean: times rstd
  };

  using NormBackwardRows<T, W>::NormBackwardRows;

  __device__ __forceinline__ void add(Sums& sums, float x, float grad, float weight, float) const {
    const float deviation = x - sums.shift, scaled = __fmul_rn(grad, weight);
    sums.deviation += deviation;
    sums.square = fmaf(deviation, deviation, sums.square);
    sums.scaled += scaled;
    sums.product = fmaf(scaled, deviation, sums.product);
  }

  template <int lanes>
  __device__ __forceinline__ Partial over_lanes(const Sums& sums, const WarpShare& share) const {
    float total[] = {sums.deviation, sums.square, sums.scaled, sums.product};
    warp_reduce_all<lanes>(total);
    const float deviation = total[0], scaled = total[2];
    const float distance = deviation * share.inverse_count;  // of the mean from the shift
    return {.count = share.count,
            .mean = sums.shift + distance,
            .square = fmaf(-distance, deviation, total[1]),
            .scaled = scaled,
            .product = fmaf(-distance, scaled, total[3])};
  }

  template <int most>
  __device__ __forceinline__ Partial combine(const Partial* parts, int count) const {
    constexpr int kLanes = kSumLanes<most>;
    const int lane = threadIdx.x % kLanes;
    const float reference = parts[0].mean;
    float moment = 0.0f;
#pragma unroll
    for (int i = 0; i < most; i += kLanes) {
      if (i + lane < count) moment = fmaf(parts[i + lane].count, parts[i + lane].mean - reference, moment);
    }
    const float distance = warp_reduce<kLanes>(moment) * this->inverse_cols;  // of the mean from the reference

    float square = 0.0f, scaled = 0.0f, product = 0.0f;
#pragma unroll
    for (int i = 0; i < most; i += kLanes) {
      if (i + lane >= count) continue;
      const Partial part = parts[i + lane];
      const float apart = (part.mean - reference) - distance;
      square += fmaf(part.count * apart, apart, part.square);
      scaled += part.scaled;
      product += fmaf(part.scaled, apart, part.product);
    }
    return {.count = static_cast<float>(this->cols),
            .mean = reference + distance,
            .square = warp_reduce<kLanes>(square),
            .scaled = warp_reduce<kLanes>(scaled),
            .product = warp_reduce<kLanes>(product)};
  }

  // Of some of the row's parts, which may be empty.
  __device__ __forceinline__ Partial combine_some(const Partial* parts, int count) const {
    const int lane = threadIdx.x % kWarp;
    const Partial part = lane < count ? parts[lane] : Partial{};
    const Moments moments = warp_merge_around({part.count, part.mean, part.square});
    const float apart = part.count > 0.0f ? part.mean - moments.mean : 0.0f;
    return {.count = moments.count,
            .mean = moments.mean,
            .square = moments.m2,
            .scaled = warp_reduce(part.scaled),
            .product = warp_reduce(fmaf(part.scaled, apart, part.product))};
  }

  template <bool lean>
  __device__ __forceinline__ Factors factors(const Partial& row, float) const {
    const float variance = row.square * this->inverse_cols;
    const float rstd = rsqrtf((variance < 0.0f ? 0.0f : variance) + this->eps);  // NaN passes
    const float scale = lean ? rstd : 1.0f;
    return {row.mean, rstd, scale * (row.scaled * this->inverse_cols),
            scale * (rstd * row.product * this->inverse_cols)};
  }

  __device__ __forceinline__ float xhat(float x, float, float, const Factors& row) const {
    return (x - row.mean) * row.rstd;
  }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, const Factors& row) const {
    if constexpr (lean) return fmaf(-xhat, row.mean_product, fmaf(scaled, row.rstd, -row.mean_scaled));
    return row.rstd * fmaf(-xhat, row.mean_product, scaled - row.mean_scaled);
  }

  __device__ void keep(float* stats, const Factors& row) const {
    stats[0] = row.mean;
    stats[1] = row.rstd;
  }
  __device__ Factors kept(const float* stats) const { return {stats[0], stats[1], 0.0f, 0.0f}; }
};

}  // namespace warpsmith
