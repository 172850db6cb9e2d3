// The norms as the kernels of their gradients know them: structs on top of NormBackwardRows.
//
//   static constexpr bool kShifted;      // add() sums around `Sums::shift`, some value near the mean of the row
//   static constexpr bool kFromOutput;   // x is the norm's output, and the row's rstd is given, in `Sums::rstd`
//   static constexpr bool kReadsBias;
//   static constexpr bool kBiasGradient;
//   static constexpr bool kResums;       // an infinite total may have to be mended
//   static constexpr int kStats;         // floats by which `naive` finds xhat again: those that keep() writes
//   struct Sums;                         // what a thread adds up over its part of a row, in one sweep
//   struct Partial;                      // what a warp hands on about its part of a row: floats
//   struct Factors;                      // what xhat and dx of a row take
//   void add(Sums&, float x, float grad, float weight, float bias) const;
//   Partial over_lanes<lanes>(const Sums&, const WarpShare&) const;   // over `lanes` neighbours
//   Partial combine<most>(const Partial* parts, int count) const;     // of the row, by whole warps; most: a power of two
//   Partial combine_some<count>(const Partial* parts) const;          // of some of the parts, which may be empty
//   Factors factors<lean>(const Partial& row) const;
//   float xhat(float x, float weight, float bias, const Factors&) const;
//   float dx<lean>(float xhat, float scaled, float more, const Factors&) const;  // scaled: grad * weight, more: grad_x
//   void keep(float* stats, const Factors&) const;
//   Factors kept(const float* stats) const;
//
// Products of grad and weight are rounded (__fmul_rn) wherever they are formed: contracted in one place and rounded in
// another, what must cancel exactly would not.
#pragma once

#include "device/moments.h"
#include "device/ptx/math.h"
#include "norm/backward/rows.cuh"

namespace warpsmith {

template <class X, class Source>
struct RmsNormBackward : NormBackwardRows<X, Source> {
  static constexpr bool kShifted = false, kFromOutput = false, kReadsBias = false, kBiasGradient = false;
  static constexpr bool kResums = false;
  static constexpr int kStats = 1;
  struct Sums {
    float square = 0.0f;   // x^2
    float product = 0.0f;  // grad * weight * x
  };
  struct Partial {
    float square, product;
  };
  struct Factors {
    float rstd;  // 1 / rms
    float mean;  // of grad * weight * xhat; lean behind a residual: times rstd
  };

  using NormBackwardRows<X, Source>::NormBackwardRows;

  __device__ __forceinline__ void add(Sums& sums, float x, float grad, float weight, float) const {
    sums.square = fmaf(x, x, sums.square);
    sums.product = fmaf(__fmul_rn(grad, weight), x, sums.product);
  }
  template <int lanes>
  __device__ __forceinline__ Partial over_lanes(const Sums& sums, const WarpShare&) const {
    float total[] = {sums.square, sums.product};
    warp_reduce_all<lanes>(total);
    return {total[0], total[1]};
  }
  template <int most>
  __device__ __forceinline__ Partial combine(const Partial* parts, int count) const {
    float sums[2];
    sum_parts<most>(sums, parts, count);
    return {sums[0], sums[1]};
  }
  template <int count>
  __device__ __forceinline__ Partial combine_some(const Partial* parts) const {
    return combine<count>(parts, count);
  }
  template <bool lean>
  __device__ __forceinline__ Factors factors(const Partial& row) const {
    const float inverse_count = __frcp_rn(static_cast<float>(this->cols));
    const float rstd = reciprocal_rms(row.square, inverse_count, this->eps);
    return {rstd, (lean && Source::kResidual ? rstd : 1.0f) * (rstd * row.product * inverse_count)};
  }

  __device__ __forceinline__ float xhat(float x, float, float, const Factors& row) const { return x * row.rstd; }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, float more, const Factors& row) const {
    if constexpr (!Source::kResidual) return row.rstd * fmaf(-xhat, row.mean, scaled);
    if constexpr (lean) return fmaf(-xhat, row.mean, fmaf(scaled, row.rstd, more));
    return row.rstd * fmaf(-xhat, row.mean, scaled) + more;
  }

  __device__ void keep(float* stats, const Factors& row) const { stats[0] = row.rstd; }
  __device__ Factors kept(const float* stats) const { return {stats[0], 0.0f}; }
};

// One sweep gathers everything, sums of deviations from a value near the mean: what each lane of the warp reads first,
// averaged. Where the mean is far from it after all, the sums say how far. Warps are merged around the differences of
// their means. So nothing cancels, however large the mean is beside the deviation.
// Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance: Analysis and Recommendations".
template <class X, class Source>
struct LayerNormBackward : NormBackwardRows<X, Source> {
  static constexpr bool kShifted = true, kFromOutput = false, kReadsBias = false, kBiasGradient = true;
  static constexpr bool kResums = Source::kResidual;
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

  using NormBackwardRows<X, Source>::NormBackwardRows;

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
    const float reference = parts[0].mean;  // the first part is never empty
    float moment = 0.0f;
#pragma unroll
    for (int i = 0; i < most; i += kLanes) {
      if (i + lane < count) moment = fmaf(parts[i + lane].count, parts[i + lane].mean - reference, moment);
    }
    const float distance = warp_reduce<kLanes>(moment) * this->inverse_cols;  // of the mean from the reference

    float square = 0.0f, sums[2] = {};
#pragma unroll
    for (int i = 0; i < most; i += kLanes) {
      if (i + lane >= count) continue;
      const Partial part = parts[i + lane];
      const float apart = (part.mean - reference) - distance;
      square += fmaf(part.count * apart, apart, part.square);
      sums[0] += part.scaled;
      sums[1] += fmaf(part.scaled, apart, part.product);
    }
    square = warp_reduce<kLanes>(square);
    warp_reduce_all<kLanes>(sums);
    return {static_cast<float>(this->cols), reference + distance, square, sums[0], sums[1]};
  }

  template <int count>
  __device__ __forceinline__ Partial combine_some(const Partial* parts) const {
    const Partial part = parts[threadIdx.x % count];
    const Moments moments = warp_merge_around<count>({part.count, part.mean, part.square});
    const float apart = part.count > 0.0f ? part.mean - moments.mean : 0.0f;
    float sums[] = {part.scaled, fmaf(part.scaled, apart, part.product)};
    warp_reduce_all<count>(sums);
    return {moments.count, moments.mean, moments.m2, sums[0], sums[1]};
  }

  template <bool lean>
  __device__ __forceinline__ Factors factors(const Partial& row) const {
    const float variance = row.square * this->inverse_cols;
    const float rstd = rsqrtf((variance < 0.0f ? 0.0f : variance) + this->eps);  // NaN passes
    Factors factors{row.mean, rstd, (lean ? rstd : 1.0f) * (row.scaled * this->inverse_cols), 0.0f};
    mend<lean>(factors, row.product);
    return factors;
  }

  // Sums around a shift lose the sign of infinite ones, which those around the mean have.
  __device__ __forceinline__ bool lost(const Factors& row) const {
    return !(fabsf(row.mean_scaled) + fabsf(row.mean_product) < INFINITY);
  }
  // product: sum of grad * weight * (x - mean).
  template <bool lean>
  __device__ __forceinline__ void mend(Factors& row, float product) const {
    row.mean_product = (lean ? row.rstd : 1.0f) * (row.rstd * product * this->inverse_cols);
  }

  __device__ __forceinline__ float xhat(float x, float, float, const Factors& row) const {
    return (x - row.mean) * row.rstd;
  }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, float more, const Factors& row) const {
    if constexpr (lean) {
      const float shift = Source::kResidual ? more - row.mean_scaled : -row.mean_scaled;
      return fmaf(-xhat, row.mean_product, fmaf(scaled, row.rstd, shift));
    }
    const float d = row.rstd * fmaf(-xhat, row.mean_product, scaled - row.mean_scaled);
    return Source::kResidual ? d + more : d;
  }

  __device__ void keep(float* stats, const Factors& row) const {
    stats[0] = row.mean;
    stats[1] = row.rstd;
  }
  __device__ Factors kept(const float* stats) const { return {stats[0], stats[1], 0.0f, 0.0f}; }
};

// --- from the output: xhat = (y - bias) / weight ---

// Weights nearer to zero than `least` have left nothing of xhat in y, and count as that much.
__device__ __forceinline__ float divisible(float weight, float least) {
  return fabsf(weight) < least ? copysignf(least, weight) : weight;  // NaN passes
}

template <class X, class Source>
struct RmsNormBackwardFromOutput : NormBackwardRows<X, Source> {
  static constexpr bool kShifted = false, kFromOutput = true, kReadsBias = false, kBiasGradient = false;
  static constexpr bool kResums = false;
  static constexpr int kStats = 0;
  struct Sums {
    float rstd = 0.0f;
    float product = 0.0f;  // grad * y
  };
  struct Partial {
    float product, rstd;
  };
  struct Factors {
    float rstd, mean;  // mean of grad * y
  };

  using NormBackwardRows<X, Source>::NormBackwardRows;

  __device__ __forceinline__ void add(Sums& sums, float y, float grad, float, float) const {
    sums.product = fmaf(grad, y, sums.product);
  }
  template <int lanes>
  __device__ __forceinline__ Partial over_lanes(const Sums& sums, const WarpShare&) const {
    return {warp_reduce<lanes>(sums.product), sums.rstd};
  }
  template <int most>
  __device__ __forceinline__ Partial combine(const Partial* parts, int count) const {
    float sums[1];
    sum_parts<most>(sums, parts, count);
    return {sums[0], parts[0].rstd};
  }
  template <int count>
  __device__ __forceinline__ Partial combine_some(const Partial* parts) const {
    return combine<count>(parts, count);
  }
  template <bool lean>
  __device__ __forceinline__ Factors factors(const Partial& row) const {
    return {row.rstd, row.product * this->inverse_cols};
  }

  __device__ __forceinline__ float xhat(float y, float weight, float, const Factors&) const {
    const float divisor = divisible(weight, this->eps);
    if constexpr (sizeof(X) == 2) return __fdividef(y, divisor);  // within 2 ulp of float, whose digits it has not
    return y / divisor;
  }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, float, const Factors& row) const {
    return row.rstd * fmaf(-xhat, row.mean, scaled);
  }

  __device__ void keep(float*, const Factors&) const {}
  __device__ Factors kept(const float*) const { return {}; }
};

template <class X, class Source>
struct LayerNormBackwardFromOutput : NormBackwardRows<X, Source> {
  static constexpr bool kShifted = false, kFromOutput = true, kReadsBias = true, kBiasGradient = true;
  static constexpr bool kResums = false;
  static constexpr int kStats = 0;
  struct Sums {
    float rstd = 0.0f;
    float scaled = 0.0f;   // grad * weight
    float product = 0.0f;  // grad * (y - bias)
  };
  struct Partial {
    float scaled, product, rstd;
  };
  struct Factors {
    float rstd;
    float mean_scaled;   // of grad * weight; lean: times rstd
    float mean_product;  // of grad * (y - bias); lean: times rstd
  };

  using NormBackwardRows<X, Source>::NormBackwardRows;

  __device__ __forceinline__ void add(Sums& sums, float y, float grad, float weight, float bias) const {
    if constexpr (sizeof(X) == 2) {
      sums.scaled = fmaf(grad, weight, sums.scaled);  // two values of 16 bits have an exact product
    } else {
      sums.scaled += __fmul_rn(grad, weight);
    }
    sums.product = fmaf(grad, y - bias, sums.product);
  }
  template <int lanes>
  __device__ __forceinline__ Partial over_lanes(const Sums& sums, const WarpShare&) const {
    float total[] = {sums.scaled, sums.product};
    warp_reduce_all<lanes>(total);
    return {total[0], total[1], sums.rstd};
  }
  template <int most>
  __device__ __forceinline__ Partial combine(const Partial* parts, int count) const {
    float sums[2];
    sum_parts<most>(sums, parts, count);
    return {sums[0], sums[1], parts[0].rstd};
  }
  template <int count>
  __device__ __forceinline__ Partial combine_some(const Partial* parts) const {
    return combine<count>(parts, count);
  }
  template <bool lean>
  __device__ __forceinline__ Factors factors(const Partial& row) const {
    const float scale = (lean ? row.rstd : 1.0f) * this->inverse_cols;
    return {row.rstd, scale * row.scaled, scale * row.product};
  }

  // 1 / divisible(weight) within 1 ulp; 0 beyond 2^126.
  __device__ __forceinline__ float inverse(float weight) const {
    return ptx::reciprocal_approx_ftz(copysignf(ptx::max_nan(fabsf(weight), this->eps), weight));
  }
  __device__ __forceinline__ float xhat(float y, float weight, float bias, const Factors&) const {
    if constexpr (sizeof(X) == 2) return (y - bias) * inverse(weight);
    return (y - bias) / divisible(weight, this->eps);
  }
  template <bool lean>
  __device__ __forceinline__ float dx(float xhat, float scaled, float, const Factors& row) const {
    if constexpr (lean) return fmaf(-xhat, row.mean_product, fmaf(scaled, row.rstd, -row.mean_scaled));
    return row.rstd * fmaf(-xhat, row.mean_product, scaled - row.mean_scaled);
  }

  __device__ void keep(float*, const Factors&) const {}
  __device__ Factors kept(const float*) const { return {}; }
};

// --- a pack of a row, and what belongs to its columns ---

template <class Norm>
struct NormPack {
  static constexpr int n = Norm::kWidth;
  float x[n], grad[n], weight[n], bias[n];

  __device__ __forceinline__ void add_to(typename Norm::Sums& sums, const Norm& v) const {
#pragma unroll
    for (int j = 0; j < n; ++j) v.add(sums, x[j], grad[j], weight[j], bias[j]);
  }
  // Its share of the sum that mends a row's factors.
  __device__ __forceinline__ float product(float mean) const {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < n; ++j) sum = fmaf(__fmul_rn(grad[j], weight[j]), x[j] - mean, sum);
    return sum;
  }
  // dx, and what it adds to the gradients of the columns of the thread's i-th pack.
  template <class Columns>
  __device__ __forceinline__ void finish(float (&dx)[n], const float (&more)[n], Columns& columns, int i,
                                         const typename Norm::Factors& row, const Norm& v) const {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float xhat = v.xhat(x[j], weight[j], bias[j], row);
      dx[j] = v.template dx<Norm::kLean>(xhat, __fmul_rn(grad[j], weight[j]), more[j], row);
      columns.add(i, j, grad[j], xhat);
    }
  }
};

}  // namespace warpsmith
