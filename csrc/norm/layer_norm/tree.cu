// Layer norm, a block per row, summed by a tree in shared memory.
//   Sweep one finds the mean, sweep two the deviations from it, sweep three normalises. Half of the threads drop out at
//   every level of the tree, each level behind a barrier of the whole block. Bound: barriers on short rows, scalar
//   accesses on long ones.
#include "norm/layer_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class A>
__device__ A tree_sum(A value, A (&partial)[kThreads]) {
  const int tid = threadIdx.x;
  __syncthreads();  // the sum before has been read
  partial[tid] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (tid < half) partial[tid] = Add{}(partial[tid], partial[tid + half]);
    __syncthreads();
  }
  return partial[0];
}

template <class T, class W, class A>
__global__ void __launch_bounds__(kThreads) layer_norm_tree_kernel(const LayerNormRows<T, W> v) {
  __shared__ A partial[kThreads];
  const int tid = threadIdx.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // mean
    A sum = from_float<A>(0.0f);
    for (int64_t i = tid; i < v.cols; i += kThreads) sum = v.add_value(sum, x[i]);
    const A mean = v.mean_of(tree_sum(v.scaled(sum), partial));

    // deviations
    Deviations<A> own;
    for (int64_t i = tid; i < v.cols; i += kThreads) add_deviation(own, x[i], mean);
    const A total = tree_sum(v.scaled(own.sum), partial), square = tree_sum(v.scaled(own.square), partial);
    const RowStats stats = v.stats_of(mean, Deviations<A>{total, square});
    if (tid == 0) v.keep(row, stats);

    // normalise
    for (int64_t i = tid; i < v.cols; i += kThreads) y[i] = v.normalise(x[i], i, stats);
  }
}

const char* takes(const LayerNormArgs&) { return nullptr; }

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const LayerNormRows<T, W> rows(a);
    warpsmith::launch<&layer_norm_tree_kernel<T, W, A>>({row_grid(a.rows), kThreads}, stream, rows);
  });
}

const Register<LayerNormArgs> registered{"tree", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
