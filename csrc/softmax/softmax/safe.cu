// Softmax, a block per row, in three sweeps: maximum, sum, results.
//   Against `unsafe`: the row's maximum is subtracted first, so no exponential exceeds 1, none overflows, and the largest
//   is never lost. The price is a sweep. Bound: the number of load instructions, one value each, three times over.
#include "softmax/softmax/result.cuh"

namespace warpsmith {
namespace {

constexpr int kValuesPerThread = 4;
constexpr int kMostThreads = 512;

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads) softmax_safe_kernel(const SoftmaxRows<T> v) {
  __shared__ float partial_max[kWarp], partial_sum[kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // maximum
    float max = kLowest;
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) max = fmaxf(max, to_float(x[i]));
    max = block_max(max, partial_max);

    // sum
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) sum += exponential<T>(to_float(x[i]) - max);
    sum = block_sum(sum, partial_sum);

    // results; the next row's maximum cannot overtake the sums of this one, which have a buffer of their own
    const Result result(max, sum);
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) y[i] = from_float<T>(result(to_float(x[i])));
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() {
    const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
    warpsmith::launch<&softmax_safe_kernel<T, Result>>({row_grid(a.rows), threads}, stream, SoftmaxRows<T>(a));
  });
}

const Register<SoftmaxArgs> registered{"safe", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
