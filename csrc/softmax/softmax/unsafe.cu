// Softmax without its maximum, a block per row, in two sweeps: sum, results.
//   Against `fence`: one block owns the row, so its sum stays in shared memory and the kernel needs no second pass through
//   L2, no atomics, and gives the same bits every time. UNSAFE: exp(x) overflows beyond x = 88, where the row becomes NaN
//   and 0, and its logarithm -inf. Of a row of values below -88 the sum is subnormal or 0: the row becomes infinite or NaN,
//   and its logarithm, once that is x - log(0), +inf. Never chosen by itself. Bound: the number of load instructions.
#include "softmax/softmax/unshifted.cuh"

namespace warpsmith {
namespace {

constexpr int kValuesPerThread = 4;
constexpr int kMostThreads = 512;

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads) softmax_unsafe_kernel(const SoftmaxRows<T> v) {
  __shared__ float partial[kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // sum
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) sum += exponential<T>(to_float(x[i]));
    sum = block_sum(sum, partial);

    // results
    const Result result(sum);
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) y[i] = from_float<T>(result(to_float(x[i])));
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_unshifted_results(a, [&]<class T, class Result>() {
    const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
    warpsmith::launch<&softmax_unsafe_kernel<T, Result>>({row_grid(a.rows), threads}, stream, SoftmaxRows<T>(a));
  });
}

bool suits(const SoftmaxArgs&) { return false; }

const Register<SoftmaxArgs> registered{"unsafe", /*min_sm=*/80, needs_rows, launch, suits};

}  // namespace
}  // namespace warpsmith
