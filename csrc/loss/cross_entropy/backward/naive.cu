// Cross-entropy backward, one value an access.
//   A block per row and stretch of columns; the softmax comes from the saved log-sum-exp, so that no value depends on
//   another. Bound: the number of load and store instructions.
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy/backward/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPerThread = 8;

template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_naive_kernel(const CrossEntropyBackwardArgs a, int64_t stretches) {
  for (int64_t block = blockIdx.x; block < a.in.rows * stretches; block += gridDim.x) {
    const int64_t row = block / stretches, first = block % stretches * (kThreads * kPerThread) + threadIdx.x;
    const T* x = logits_row<T>(a.in, row);  // [cols]
    T* dx = dlogits_row<T>(a, row);         // [cols]
    const RowGradient gradient = row_gradient(a, row);
#pragma unroll 4
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t col = first + i * kThreads;
      if (col < a.in.cols) dx[col] = from_float<T>(gradient_at(to_float(x[col]), gradient, col));
    }
  }
}

const char* takes(const CrossEntropyBackwardArgs&) { return nullptr; }

void launch(const CrossEntropyBackwardArgs& a, cudaStream_t stream) {
  constexpr int kStretch = kThreads * kPerThread;
  const int64_t stretches = (a.in.cols + kStretch - 1) / kStretch;
  dispatch_float(a.in.dtype, [&]<class T>() {
    const unsigned grid = row_grid(a.in.rows * stretches);
    warpsmith::launch<&cross_entropy_backward_naive_kernel<T>>({grid, kThreads}, stream, a, stretches);
  });
}

const Register<CrossEntropyBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
