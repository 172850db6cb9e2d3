// Softmax backward, a block per row, in two sweeps: the sum, then the gradient.
//   A thread has several separate loads of both inputs in flight; any alignment, any length. Bound: the number of load
//   instructions, one value each.
#include "softmax/softmax/backward/gradient.cuh"

namespace warpsmith {
namespace {

constexpr int kLoads = 4;  // of each input
constexpr int kMostThreads = 512;

template <class T, class Gradient>
__global__ void __launch_bounds__(kMostThreads) softmax_backward_naive_kernel(const SoftmaxBackwardRows<T> v) {
  __shared__ float partial[kWarp];
  const int64_t step = int64_t{kLoads} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* grad = v.grad_row(row);
    const T* y = v.y_row(row);
    T* dx = v.dx_row(row);
    T grads[kLoads], values[kLoads];

    // sum: neighbouring threads read neighbouring values, blockDim.x apart from load to load
    float sum = 0.0f;
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        grads[i] = at < v.cols ? grad[at] : from_float<T>(0.0f);
        values[i] = at < v.cols ? y[at] : from_float<T>(0.0f);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) sum = Gradient::add(sum, to_float(grads[i]), to_float(values[i]));
    }
    sum = block_sum(sum, partial);

    // gradient
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        if (at < v.cols) grads[i] = grad[at], values[i] = y[at];
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        if (at < v.cols) dx[at] = from_float<T>(Gradient::finish(to_float(grads[i]), to_float(values[i]), sum));
      }
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  visit_gradients(a, [&]<class T, class Gradient>() {
    const unsigned threads = row_threads(a.cols, kLoads, kMostThreads);
    const SoftmaxBackwardRows<T> rows(a);
    warpsmith::launch<&softmax_backward_naive_kernel<T, Gradient>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<SoftmaxBackwardArgs> registered{"naive", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
