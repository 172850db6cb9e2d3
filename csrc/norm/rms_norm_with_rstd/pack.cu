// RMS norm with rstd, 128-bit accesses, two sweeps.
//   Against `shuffle`: one load brings 16 bytes, so the memory system sees the fewest, widest requests. Bound: the row is
//   read twice, the second time from L2 where it still lies there.
#include "norm/rms_norm_with_rstd/row.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 2;
constexpr int kMostThreads = 512;

template <class T, class W>
__global__ void __launch_bounds__(kMostThreads) rms_norm_with_rstd_pack_kernel(const RmsNormWithRstdRows<T, W> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ float partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);
    Pack<T> pack;
    float values[kWidth];

    // square and sum
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t col = first; col < v.cols; col += step) {
      load(pack, x + col);
      to_float(values, pack);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum = fmaf(values[i], values[i], sum);
    }
    const float scale = v.keep(row, sum, partial);

    // normalise
#pragma unroll 2
    for (int64_t col = first; col < v.cols; col += step) {
      WeightPack<W, kWidth> weight;
      float factors[kWidth];
      load(pack, x + col);
      weight.load_from(v.weight, col);
      to_float(values, pack);
      weight.to_floats(factors);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = values[i] * scale * factors[i];
      from_float(pack, values);
      store<Cache::streaming>(y + col, pack);
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const RmsNormWithRstdArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const bool packs =
      tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) && tiles_weight(a.weight, a.weight_dtype, width);
  return packs ? nullptr : "needs rows and weight aligned to 16 bytes";
}

void launch(const RmsNormWithRstdArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const unsigned threads = row_threads(a.cols, kPacksPerThread * kPack<T>, kMostThreads);
    warpsmith::launch<&rms_norm_with_rstd_pack_kernel<T, W>>({row_grid(a.rows), threads}, stream,
                                                             RmsNormWithRstdRows<T, W>(a));
  });
}

const Register<RmsNormWithRstdArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
