// RMS norm, a block per row, summed by a tree in shared memory.
//   Sweep one squares and sums, sweep two normalises. Half of the threads drop out at every level of the tree, each
//   level behind a barrier of the whole block. Bound: barriers on short rows, scalar accesses on long ones.
#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T, class W, class A>
__global__ void __launch_bounds__(kThreads) rms_norm_tree_kernel(const RmsNormRows<T, W> v) {
  __shared__ A partial[kThreads];
  const int tid = threadIdx.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // square and sum
    A sum = from_float<A>(0.0f);
    for (int64_t i = tid; i < v.cols; i += kThreads) sum = add_square(sum, x[i]);
    partial[tid] = scaled(sum, v.partial_scale);
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (tid < half) partial[tid] = Add{}(partial[tid], partial[tid + half]);
      __syncthreads();
    }
    const float scale = reciprocal_rms(to_float(partial[0]), v.inverse_count, v.eps);

    // normalise
    for (int64_t i = tid; i < v.cols; i += kThreads) {
      const float weight = v.weight == nullptr ? 1.0f : to_float(v.weight[i]);
      y[i] = from_float<T>(to_float(x[i]) * scale * weight);
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const RmsNormArgs&) { return nullptr; }

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const RmsNormRows<T, W> rows(a);
    warpsmith::launch<&rms_norm_tree_kernel<T, W, A>>({row_grid(a.rows), kThreads}, stream, rows);
  });
}

const Register<RmsNormArgs> registered{"tree", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
