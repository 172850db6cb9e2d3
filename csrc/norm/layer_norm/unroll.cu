// Layer norm, 16 bytes a thread and step as separate loads.
//   Against `shuffle`: a thread has four or eight independent loads in flight before it needs the first, so it waits
//   for memory once per step; any alignment. Bound: memory instructions, one per value.
#include "norm/layer_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;

// Calls use(value, col) for the values of a step that lie in the row: neighbouring threads take neighbouring values,
// blockDim.x apart from load to load.
template <class T, class Use>
__device__ __forceinline__ void for_step(const T* x, int64_t col, int64_t cols, Use&& use) {
  constexpr int kWidth = kPack<T>;
  T values[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const int64_t at = col + int64_t{i} * blockDim.x;
    if (at < cols) values[i] = x[at];
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const int64_t at = col + int64_t{i} * blockDim.x;
    if (at < cols) use(values[i], at);
  }
}

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads, 2) layer_norm_unroll_kernel(const LayerNormRows<T, W> v) {
  __shared__ A sums[kWarp], deviations[2][kWarp];
  const int64_t step = int64_t{kPack<T>} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // mean
    A sum = from_float<A>(0.0f);
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
      A of_step = from_float<A>(0.0f);
      for_step(x, col, v.cols, [&](T value, int64_t) { of_step = v.add_value(of_step, value); });
      sum = Add{}(sum, of_step);
    }
    const A mean = v.mean_of(block_sum(v.scaled(sum), sums));

    // deviations
    Deviations<A> own;
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
      Deviations<A> of_step;
      for_step(x, col, v.cols, [&](T value, int64_t) { add_deviation(of_step, value, mean); });
      own = {Add{}(own.sum, of_step.sum), Add{}(own.square, of_step.square)};
    }
    const RowStats stats = v.stats_of(mean, block_sum(own, v, deviations));
    if (threadIdx.x == 0) v.keep(row, stats);

    // normalise
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
      for_step(x, col, v.cols, [&](T value, int64_t at) { y[at] = v.normalise(value, at, stats); });
    }
    __syncthreads();  // the next row overwrites the sums
  }
}

const char* takes(const LayerNormArgs&) { return nullptr; }

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const LayerNormRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, kPack<T>, kMostThreads);
    warpsmith::launch<&layer_norm_unroll_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<LayerNormArgs> registered{"unroll", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
