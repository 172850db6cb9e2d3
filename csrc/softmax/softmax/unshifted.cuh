// What the rungs without a maximum share: the step from a row's sum of exp(x) to its results.
#pragma once

#include "softmax/softmax/result.cuh"

namespace warpsmith {

// exp(x) / sum. Not Probability(0, sum), which works 2^64 higher on 16-bit data and would overflow beyond x = 44.
template <class T>
class UnshiftedProbability {
 public:
  explicit __device__ __forceinline__ UnshiftedProbability(float sum) : factor_(reciprocal(sum)) {}

  __device__ __forceinline__ float operator()(float x) const { return exponential<T>(x) * factor_; }

 private:
  float factor_;
};

// x - log(sum). Unlike (x - max) - log(sum), this cancels where the result is near 0, which is off by an ulp of x.
class UnshiftedLogProbability {
 public:
  explicit __device__ __forceinline__ UnshiftedLogProbability(float sum) : log_sum_(logf(sum)) {}

  __device__ __forceinline__ float operator()(float x) const { return x - log_sum_; }

 private:
  float log_sum_;
};

// Calls body.template operator()<T, Result>().
template <class Body>
void visit_unshifted_results(const SoftmaxArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.log) {
      body.template operator()<T, UnshiftedLogProbability>();
    } else {
      body.template operator()<T, UnshiftedProbability<T>>();
    }
  });
}

}  // namespace warpsmith
