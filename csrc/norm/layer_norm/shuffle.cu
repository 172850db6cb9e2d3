// Layer norm, a block per row, summed by warp shuffles.
//   Against `tree`: lanes exchange registers instead of shared memory, so one barrier replaces eight at each of the three
//   sums, and short rows get fewer threads. Bound: the number of load instructions, one value each.
#include "norm/layer_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kValuesPerThread = 4;
constexpr int kMostThreads = 512;
constexpr int kTogether = 8;
constexpr int kMinBlocks = 3;  // left alone, ptxas takes 32 registers for sm_80 and spills

// A thread's share of the deviations of x[cols]. A few meet before they join the others, as those of a pack do in
// add_deviations: a long sum that is rounded at every value loses the last digits of rstd.
template <class A, class T>
__device__ Deviations<A> deviations_of(const T* x, int64_t cols, A shift) {
  Deviations<A> all;
  for (int64_t start = threadIdx.x; start < cols; start += int64_t{kTogether} * blockDim.x) {
    Deviations<A> few;
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t i = start + int64_t{k} * blockDim.x;
      if (i < cols) add_deviation(few, x[i], shift);
    }
    all.sum = Add{}(all.sum, few.sum);
    all.square = Add{}(all.square, few.square);
  }
  return all;
}

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads, kMinBlocks) layer_norm_shuffle_kernel(const LayerNormRows<T, W> v) {
  __shared__ A sums[kWarp], deviations[2][kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // mean
    A sum = from_float<A>(0.0f);
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) sum = v.add_value(sum, x[i]);
    const A mean = v.mean_of(block_sum(v.scaled(sum), sums));

    // deviations
    const RowStats stats = v.stats_of(mean, block_sum(deviations_of(x, v.cols, mean), v, deviations));
    if (threadIdx.x == 0) v.keep(row, stats);

    // normalise
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) y[i] = v.normalise(x[i], i, stats);
    __syncthreads();  // the next row overwrites the sums
  }
}

const char* takes(const LayerNormArgs&) { return nullptr; }

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const LayerNormRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
    warpsmith::launch<&layer_norm_shuffle_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<LayerNormArgs> registered{"shuffle", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
