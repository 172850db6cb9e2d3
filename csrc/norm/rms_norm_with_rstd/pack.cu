// RMS norm with rstd, 128-bit accesses, two sweeps.
//   Against `shuffle`: one load brings 16 bytes, so the memory system sees the fewest, widest requests. Bound: the row is
//   read twice, the second time from L2 where it still lies there.
#include "norm/rms_norm_with_rstd/row.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 2;
constexpr int kMostThreads = 512;

template <class T, class W>
__global__ void __launch_bounds__(kMostThreads) rms_norm_with_rstd_pack_kernel(const RmsNormWithRstd<T, W> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ float partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // square and sum
    CompensatedSquares own;
#pragma unroll 4
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      own.add(add_squares(0.0f, values));
    }
    const float scale = reciprocal_rms(block_sum(own.sum, partial), v.inverse_count, v.eps);
    if (threadIdx.x == 0) v.rstd[row] = scale;

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

void launch(const RmsNormWithRstdArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const unsigned threads = row_threads(a.cols, kPacksPerThread * kPack<T>, kMostThreads);
    warpsmith::launch<&rms_norm_with_rstd_pack_kernel<T, W>>({row_grid(a.rows), threads}, stream,
                                                             RmsNormWithRstd<T, W>(a));
  });
}

const char* takes(const RmsNormWithRstdArgs& a) { return needs_packs(a); }

const Register<RmsNormWithRstdArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
