// Softmax in three sweeps, two 16-bit values an access.
//   Against `safe`: half of the loads and stores, and a pair is converted by one instruction. Bound: still the number of
//   memory instructions, at 4 bytes each.
#include "softmax/softmax/result.cuh"

namespace warpsmith {
namespace {

constexpr int kWidth = 2;
constexpr int kValuesPerThread = 8;
constexpr int kMostThreads = 512;

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads) softmax_safe_x2_kernel(const SoftmaxRows<T> v) {
  __shared__ float partial_max[kWarp], partial_sum[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);
    Vec<T, kWidth> values;

    // maximum
    float max = kLowest;
    for (int64_t col = first; col < v.cols; col += step) {
      load(values, x + col);
      max = max_of(max, values);
    }
    max = block_max(max, partial_max);

    // sum
    float sum = 0.0f;
    for (int64_t col = first; col < v.cols; col += step) {
      load(values, x + col);
      sum = add_exponentials(sum, values, max);
    }
    sum = block_sum(sum, partial_sum);

    // results
    const Result result(max, sum);
    for (int64_t col = first; col < v.cols; col += step) {
      load(values, x + col);
      store(y + col, results(values, result));
    }
  }
}

const char* takes(const SoftmaxArgs& a) { return a.dtype == Dtype::f32 ? "takes f16 and bf16" : needs_pairs(a); }

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() {
    if constexpr (sizeof(T) == 2) {
      const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
      warpsmith::launch<&softmax_safe_x2_kernel<T, Result>>({row_grid(a.rows), threads}, stream, SoftmaxRows<T>(a));
    }
  });
}

const Register<SoftmaxArgs> registered{"safe_x2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
