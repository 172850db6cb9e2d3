// Layer norm, a block per row, summed by warp shuffles.
//   Against `tree`: lanes exchange registers instead of shared memory, so one barrier replaces eight at each of the three
//   sums, and short rows get fewer threads. Bound: the number of load instructions, one value each.
#include "norm/layer_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kValuesPerThread = 4;
constexpr int kMostThreads = 512;

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads) layer_norm_shuffle_kernel(const LayerNormRows<T, W> v) {
  __shared__ A sums[kWarp], deviations[2][kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // mean
    A sum = from_float<A>(0.0f);
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) sum = v.add_value(sum, x[i]);
    const A mean = v.mean_of(block_sum(v.scaled(sum), sums));

    // deviations
    Deviations<A> own;
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) add_deviation(own, x[i], mean);
    const RowStats stats = v.stats_of(mean, block_sum(own, v, deviations));
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
