// What the rungs of softmax_backward share: typed rows, and the two gradients.
#pragma once

#include "host/launch.h"
#include "host/registry.h"
#include "softmax/row.cuh"
#include "softmax/softmax/backward/softmax_backward.h"

namespace warpsmith {

// Rows of contiguous columns.
template <class T>
struct SoftmaxBackwardRows {
  const T* grad;  // [rows, cols], grad_stride elements apart
  const T* y;     // [rows, cols], y_stride elements apart
  T* dx;          // [rows, cols]
  int64_t rows, cols, grad_stride, y_stride;

  explicit SoftmaxBackwardRows(const SoftmaxBackwardArgs& a)
      : grad(static_cast<const T*>(a.grad)),
        y(static_cast<const T*>(a.y)),
        dx(static_cast<T*>(a.dx)),
        rows(a.rows),
        cols(a.cols),
        grad_stride(a.grad_stride),
        y_stride(a.y_stride) {}

  __device__ const T* grad_row(int64_t row) const { return grad + row * grad_stride; }
  __device__ const T* y_row(int64_t row) const { return y + row * y_stride; }
  __device__ T* dx_row(int64_t row) const { return dx + row * cols; }
};

// `add` is what a value contributes to the row's sum, `finish` its gradient once the sum is known.
template <class T>
struct SoftmaxGradient {
  __device__ __forceinline__ static float add(float sum, float grad, float y) { return fmaf(grad, y, sum); }
  __device__ __forceinline__ static float finish(float grad, float y, float sum) { return y * (grad - sum); }
};

template <class T>
struct LogSoftmaxGradient {
  __device__ __forceinline__ static float add(float sum, float grad, float) { return sum + grad; }
  __device__ __forceinline__ static float finish(float grad, float y, float sum) {
    return fmaf(-exponential<T>(y), sum, grad);
  }
};

template <class Gradient, class T, int n>
__device__ __forceinline__ float add_terms(float sum, const Vec<T, n>& grad, const Vec<T, n>& y) {
  float grads[n], values[n];
  to_float(grads, grad);
  to_float(values, y);
#pragma unroll
  for (int i = 0; i < n; ++i) sum = Gradient::add(sum, grads[i], values[i]);
  return sum;
}

template <class Gradient, class T, int n>
__device__ __forceinline__ Vec<T, n> gradients(const Vec<T, n>& grad, const Vec<T, n>& y, float sum) {
  float grads[n], values[n];
  to_float(grads, grad);
  to_float(values, y);
#pragma unroll
  for (int i = 0; i < n; ++i) values[i] = Gradient::finish(grads[i], values[i], sum);
  Vec<T, n> dx;
  from_float(dx, values);
  return dx;
}

// Calls body.template operator()<T, Gradient>().
template <class Body>
void visit_gradients(const SoftmaxBackwardArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.log) {
      body.template operator()<T, LogSoftmaxGradient<T>>();
    } else {
      body.template operator()<T, SoftmaxGradient<T>>();
    }
  });
}

}  // namespace warpsmith
