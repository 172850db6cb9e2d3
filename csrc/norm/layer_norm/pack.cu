// Layer norm, one 128-bit access at a time, three sweeps.
//   Against `unroll`: one load brings 16 bytes, so the memory system sees the fewest, widest requests. Rows of any
//   length that packs tile. Bound: the row is read three times, from L2 where it still lies there.
#include "norm/layer_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 2;
constexpr int kMostThreads = 512;

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads) layer_norm_pack_kernel(const LayerNormRows<T, W> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ A sums[kWarp], deviations[2][kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // mean
    A sum = from_float<A>(0.0f);
#pragma unroll 4
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      sum = v.add_values(sum, values);
    }
    const A mean = v.mean_of(block_sum(v.scaled(sum), sums));

    // deviations
    Deviations<A> own;
#pragma unroll 4
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      add_deviations(own, values, mean);
    }
    const RowStats stats = v.stats_of(mean, block_sum(own, v, deviations));
    if (threadIdx.x == 0) v.keep(row, stats);

    // normalise
#pragma unroll 2
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      WeightPack<W, kWidth> weight, bias;
      load(values, x + col);
      weight.load_from(v.weight, col);
      bias.load_from(v.bias, col, 0.0f);
      store<Cache::streaming>(y + col, normalise(values, stats, weight, bias));
    }
    __syncthreads();  // the next row overwrites the sums
  }
}

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const LayerNormRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, kPacksPerThread * kPack<T>, kMostThreads);
    warpsmith::launch<&layer_norm_pack_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<LayerNormArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
