// Softmax in three sweeps, 128-bit accesses.
//   Against `safe_x2`: one load brings 16 bytes, so the memory system sees the fewest, widest requests. Bound: the row
//   crosses the multiprocessor's border three times, the second and third from L2 where it still lies there.
#include "softmax/softmax/result.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 2;
constexpr int kMostThreads = 512;

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads) softmax_safe_pack_kernel(const SoftmaxRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ float partial_max[kWarp], partial_sum[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // maximum
    float max = kLowest;
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      max = max_of(max, values);
    }
    max = block_max(max, partial_max);

    // sum
    float sum = 0.0f;
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      sum = add_exponentials(sum, values, max);
    }
    sum = block_sum(sum, partial_sum);

    // results
    const Result result(max, sum);
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      store<Cache::streaming>(y + col, results(values, result));
    }
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() {
    const unsigned threads = row_threads(a.cols, kPacksPerThread * kPack<T>, kMostThreads);
    warpsmith::launch<&softmax_safe_pack_kernel<T, Result>>({row_grid(a.rows), threads}, stream, SoftmaxRows<T>(a));
  });
}

const Register<SoftmaxArgs> registered{"safe_pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
