// What the rungs of softmax and log_softmax share: typed rows, and the step from a row's maximum and sum to its results.
#pragma once

#include "host/launch.h"
#include "host/registry.h"
#include "softmax/row.cuh"
#include "softmax/softmax/softmax.h"

namespace warpsmith {

// Rows of contiguous columns.
template <class T>
struct SoftmaxRows {
  const T* x;  // [rows, cols], x_stride elements apart
  T* y;        // [rows, cols]
  int64_t rows, cols, x_stride;

  explicit SoftmaxRows(const SoftmaxArgs& a)
      : x(static_cast<const T*>(a.x)), y(static_cast<T*>(a.y)), rows(a.rows), cols(a.cols), x_stride(a.x_stride) {}

  __device__ const T* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ T* y_row(int64_t row) const { return y + row * cols; }
};

// --- from maximum and sum to the result -------------------------------------------------------------------------------

// exp(x - max) / sum. The fast exponential flushes what lies below the normal numbers, so 16-bit data let it work 2^64
// higher and take that out of the factor, where it costs nothing: bf16 then keeps its subnormal results, as PyTorch does.
template <class T>
class Probability {
  static constexpr bool kExact = std::is_same_v<T, float>;

 public:
  // Whether the terms of the sum are results but for a factor, to the same bits.
  static constexpr bool kFromExponential = kExact;

  Probability() = default;
  __device__ __forceinline__ Probability(float max, float sum)
      : max_(max), factor_(kExact ? reciprocal(sum) : reciprocal(sum) * kUnlift) {}

  __device__ __forceinline__ float operator()(float x) const {
    if constexpr (kExact) {
      return expf(x - max_) * factor_;
    } else {
      return ptx::exp2_approx_ftz(fmaf(x - max_, kLog2e, kLift)) * factor_;
    }
  }

  // The same from exponential<T>(x - max).
  __device__ __forceinline__ float from_exponential(float x) const {
    static_assert(kFromExponential);
    return x * factor_;
  }

 private:
  static constexpr float kLift = 64.0f, kUnlift = 0x1p-64f;
  float max_, factor_;
};

// (x - max) - log(sum): both terms have one sign, so nothing cancels and very negative results keep their accuracy.
template <class T>
class LogProbability {
 public:
  static constexpr bool kFromExponential = false;

  LogProbability() = default;
  __device__ __forceinline__ LogProbability(float max, float sum) : max_(max), log_sum_(logf(sum)) {}

  __device__ __forceinline__ float operator()(float x) const { return (x - max_) - log_sum_; }

 private:
  float max_, log_sum_;
};

template <class Result, class T, int n>
__device__ __forceinline__ Vec<T, n> results(const Vec<T, n>& x, const Result& result) {
  float values[n];
  to_float(values, x);
#pragma unroll
  for (int i = 0; i < n; ++i) values[i] = result(values[i]);
  Vec<T, n> y;
  from_float(y, values);
  return y;
}

// Calls body.template operator()<T, Result>().
template <class Body>
void visit_results(const SoftmaxArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.log) {
      body.template operator()<T, LogProbability<T>>();
    } else {
      body.template operator()<T, Probability<T>>();
    }
  });
}

// --- the sweeps of the rungs that read a row several times -------------------------------------------------------------

template <class T, int n>
__device__ __forceinline__ float max_of(float max, const Vec<T, n>& x) {
  float values[n];
  to_float(values, x);
#pragma unroll
  for (int i = 0; i < n; ++i) max = fmaxf(max, values[i]);
  return max;
}

template <class T, int n>
__device__ __forceinline__ float add_exponentials(float sum, const Vec<T, n>& x, float max) {
  float values[n];
  to_float(values, x);
#pragma unroll
  for (int i = 0; i < n; ++i) sum += exponential<T>(values[i] - max);
  return sum;
}

}  // namespace warpsmith
