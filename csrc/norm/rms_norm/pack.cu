// RMS norm, one 128-bit access at a time, two sweeps.
//   Against `unroll`: one load brings 16 bytes, so the memory system sees the fewest, widest requests. Rows of any
//   length that packs tile. Bound: the row is read twice, the second time from L2 where it still lies there.
#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 2;
constexpr int kMostThreads = 512;

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads) rms_norm_pack_kernel(const RmsNormRows<T, W> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ A partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // square and sum
    A sum = from_float<A>(0.0f);
#pragma unroll 4
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      sum = add_squares(sum, values);
    }
    sum = block_sum(scaled(sum, v.partial_scale), partial);
    const float scale = reciprocal_rms(to_float(sum), v.inverse_count, v.eps);

    // normalise
#pragma unroll 2
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      WeightPack<W, kWidth> weight;
      load(values, x + col);
      weight.load_from(v.weight, col);
      store<Cache::streaming>(y + col, normalise(values, scale, weight));
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const RmsNormRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, kPacksPerThread * kPack<T>, kMostThreads);
    warpsmith::launch<&rms_norm_pack_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<RmsNormArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
