// Softmax in two sweeps: maximum and sum together, then results.
//   Against `safe_pack`: the sum is taken against the largest value so far and corrected whenever a larger one turns up,
//   once for 16 bytes a thread, which are separate loads in flight together, at any alignment. A sweep less. Bound: the
//   number of load instructions, one value each.
// Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", https://arxiv.org/abs/1805.02867
#include "softmax/softmax/result.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads) softmax_online_kernel(const SoftmaxRows<T> v) {
  constexpr int kLoads = kPack<T>;
  __shared__ MaxSum partial[kWarp];
  const int64_t step = int64_t{kLoads} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // maximum and sum: neighbouring threads read neighbouring values, blockDim.x apart from load to load
    MaxSum seen = MaxSum::empty();
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
      float values[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        values[i] = at < v.cols ? to_float(x[at]) : -INFINITY;
      }
      seen = include<T>(seen, values);
    }
    const MaxSum whole = block_merge<T>(seen, partial);

    // results
    const Result result(whole.max, whole.sum);
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
      T values[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        if (at < v.cols) values[i] = x[at];
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        if (at < v.cols) y[at] = from_float<T>(result(to_float(values[i])));
      }
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() {
    const unsigned threads = row_threads(a.cols, kPack<T>, kMostThreads);
    warpsmith::launch<&softmax_online_kernel<T, Result>>({row_grid(a.rows), threads}, stream, SoftmaxRows<T>(a));
  });
}

const Register<SoftmaxArgs> registered{"online", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
