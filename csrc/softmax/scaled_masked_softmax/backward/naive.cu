// Scaled masked softmax backward, a block per row in two sweeps: sum of products, write.
//   One value an access, any length and any alignment. Bound: the number of loads, half of them for the second time.
#include "device/block.h"
#include "softmax/scaled_masked_softmax/backward/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    scaled_masked_softmax_backward_naive_kernel(const ScaledMaskedSoftmaxBackwardRows<T> v) {
  __shared__ BlockReduceStorage<float, kThreads> partial;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const int64_t live = v.live_columns(row);
    const T* grad = v.grad + row * v.grad_stride;  // [cols]
    const T* y = v.y + row * v.y_stride;           // [cols]
    T* dx = v.dx + row * v.cols;                   // [cols]

    // sum of products
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < live; i += kThreads) sum = fmaf(to_float(grad[i]), to_float(y[i]), sum);
    sum = block_reduce<kThreads>(sum, partial);

    // write
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < live; i += kThreads) {
      dx[i] = from_float<T>(to_float(y[i]) * (v.scale * (to_float(grad[i]) - sum)));
    }
    for (int64_t i = live + threadIdx.x; i < v.cols; i += kThreads) dx[i] = from_float<T>(0.0f);
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const ScaledMaskedSoftmaxBackwardArgs&) { return nullptr; }

void launch(const ScaledMaskedSoftmaxBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&scaled_masked_softmax_backward_naive_kernel<T>>({row_grid(a.rows), kThreads}, stream,
                                                                       ScaledMaskedSoftmaxBackwardRows<T>(a));
  });
}

const Register<ScaledMaskedSoftmaxBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
