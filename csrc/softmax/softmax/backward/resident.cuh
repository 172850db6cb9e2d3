// The gradient of softmax for rows that stay on chip: what the engines in row/ need to know about it.
#pragma once

#include "row/registers.cuh"
#include "softmax/softmax/backward/gradient.cuh"

namespace warpsmith {

// Gradient: SoftmaxGradient or LogSoftmaxGradient.
template <class T, class Gradient>
struct SoftmaxBackward : SoftmaxBackwardRows<T>, WithoutColumns<SoftmaxBackward<T, Gradient>> {
  using Value = T;
  static constexpr int kInputs = 2;  // grad and y
  struct Stats {
    float sum;
  };
  using Total = float;

  bool beyond_l2;  // both inputs together would fill L2

  explicit SoftmaxBackward(const SoftmaxBackwardArgs& a)
      : SoftmaxBackwardRows<T>(a), beyond_l2(2 * a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {}

  __device__ static uint4 padding() { return {}; }
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }
  __device__ const T* input(int which, int64_t row) const {
    return which == 0 ? this->grad_row(row) : this->y_row(row);
  }
  __device__ T* output(int64_t row) const { return this->dx_row(row); }

  template <int lanes, int packs>
  __device__ __forceinline__ Stats gather(const uint4 (&x)[packs][2], int) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      float grad[kPack<T>], y[kPack<T>];
      unpack<T>(grad, x[i][0]);
      unpack<T>(y, x[i][1]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) sum = Gradient::add(sum, grad[j], y[j]);
    }
    return {warp_reduce<lanes>(sum)};
  }

  __device__ __forceinline__ Stats combine(const Stats* parts, int count) const {
    float sum = 0.0f;
    for (int i = threadIdx.x % kWarp; i < count; i += kWarp) sum += parts[i].sum;
    return {warp_reduce(sum)};
  }

  __device__ __forceinline__ float total(const Stats& stats) const { return stats.sum; }

  __device__ void keep(int64_t, float) const {}
  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[2], float sum,
                                         const typename WithoutColumns<SoftmaxBackward>::Columns&) const {
    float grad[kPack<T>], y[kPack<T>];
    unpack<T>(grad, x[0]);
    unpack<T>(y, x[1]);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) y[i] = Gradient::finish(grad[i], y[i], sum);
    ptx::store_streaming(reinterpret_cast<uint4*>(this->dx_row(row) + col), pack<T>(y));
  }
  __device__ __forceinline__ void finish_one(int64_t row, int col, const T (&x)[2], float sum) const {
    this->dx_row(row)[col] = from_float<T>(Gradient::finish(to_float(x[0]), to_float(x[1]), sum));
  }
};

}  // namespace warpsmith
