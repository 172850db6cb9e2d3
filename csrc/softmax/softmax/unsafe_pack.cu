// Softmax without its maximum, 128-bit accesses.
//   Against `unsafe`: one load brings 16 bytes. UNSAFE in the same way. Bound: the row is read twice, the second time
//   from L2 where it still lies there.
#include "softmax/softmax/unshifted.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 2;
constexpr int kMostThreads = 512;

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads) softmax_unsafe_pack_kernel(const SoftmaxRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ float partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // sum
    float sum = 0.0f;
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      sum = add_exponentials(sum, values, 0.0f);
    }
    sum = block_sum(sum, partial);

    // results
    const Result result(sum);
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      store<Cache::streaming>(y + col, results(values, result));
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_unshifted_results(a, [&]<class T, class Result>() {
    const unsigned threads = row_threads(a.cols, kPacksPerThread * kPack<T>, kMostThreads);
    warpsmith::launch<&softmax_unsafe_pack_kernel<T, Result>>({row_grid(a.rows), threads}, stream, SoftmaxRows<T>(a));
  });
}

bool suits(const SoftmaxArgs&) { return false; }

const Register<SoftmaxArgs> registered{"unsafe_pack", /*min_sm=*/80, needs_packs, launch, suits};

}  // namespace
}  // namespace warpsmith
