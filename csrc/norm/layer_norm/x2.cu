// Layer norm, two 16-bit values an access.
//   Against `shuffle`: half of the loads and stores, and a 16-bit accumulator adds two values an instruction.
//   Bound: still the number of memory instructions, at 4 bytes each.
#include "norm/layer_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kWidth = 2;
constexpr int kValuesPerThread = 8;
constexpr int kMostThreads = 512;

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads) layer_norm_x2_kernel(const LayerNormRows<T, W> v) {
  __shared__ A sums[kWarp], deviations[2][kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);
    Vec<T, kWidth> values;

    // mean
    A sum = from_float<A>(0.0f);
    for (int64_t col = first; col < v.cols; col += step) {
      load(values, x + col);
      sum = v.add_values(sum, values);
    }
    const A mean = v.mean_of(block_sum(v.scaled(sum), sums));

    // deviations
    Deviations<A> own;
    for (int64_t col = first; col < v.cols; col += step) {
      load(values, x + col);
      add_deviations(own, values, mean);
    }
    const RowStats stats = v.stats_of(mean, block_sum(own, v, deviations));
    if (threadIdx.x == 0) v.keep(row, stats);

    // normalise
    for (int64_t col = first; col < v.cols; col += step) {
      WeightPack<W, kWidth> weight, bias;
      load(values, x + col);
      weight.load_from(v.weight, col);
      bias.load_from(v.bias, col, 0.0f);
      store(y + col, normalise(values, stats, weight, bias));
    }
    __syncthreads();  // the next row overwrites the sums
  }
}

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    if constexpr (sizeof(T) == 2) {
      const LayerNormRows<T, W> rows(a);
      const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
      warpsmith::launch<&layer_norm_x2_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
    }
  });
}

const char* takes(const LayerNormArgs& a) { return a.dtype == Dtype::f32 ? "takes f16 and bf16" : needs_pairs(a); }

const Register<LayerNormArgs> registered{"x2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
