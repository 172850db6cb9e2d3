// RMS norm with rstd, a block per row, summed by warp shuffles.
//   One value an access, two sweeps over the row; any alignment. Bound: the number of load instructions.
#include "norm/rms_norm_with_rstd/row.cuh"

namespace warpsmith {
namespace {

constexpr int kValuesPerThread = 4;
constexpr int kMostThreads = 512;

template <class T, class W>
__global__ void __launch_bounds__(kMostThreads) rms_norm_with_rstd_shuffle_kernel(const RmsNormWithRstd<T, W> v) {
  __shared__ float partial[kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // square and sum
    CompensatedSquares own;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) own.add(add_square(0.0f, x[i]));
    const float scale = reciprocal_rms(block_sum(own.sum, partial), v.inverse_count, v.eps);
    if (threadIdx.x == 0) v.rstd[row] = scale;

    // normalise
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      const float weight = v.weight == nullptr ? 1.0f : to_float(v.weight[i]);
      y[i] = from_float<T>(to_float(x[i]) * scale * weight);
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const RmsNormWithRstdArgs&) { return nullptr; }

void launch(const RmsNormWithRstdArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
    warpsmith::launch<&rms_norm_with_rstd_shuffle_kernel<T, W>>({row_grid(a.rows), threads}, stream,
                                                                RmsNormWithRstd<T, W>(a));
  });
}

const Register<RmsNormWithRstdArgs> registered{"shuffle", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
