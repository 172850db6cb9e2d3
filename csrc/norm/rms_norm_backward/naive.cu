// RMS norm backward, two kernels: a block per row writes dx, then columns are summed for dw.
//   The first sweeps its row twice, one value a load; the second reads grad and x again, in chunks of rows so that
//   there is work for every multiprocessor, and a third adds the chunks up. Any alignment, any length. Bound: five
//   passes over data that three would do.
#include "norm/rms_norm_backward/row.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;
constexpr int kColumnBlock = 128;

template <class T, class W>
__global__ void __launch_bounds__(kMostThreads) rms_norm_backward_naive_kernel(const RmsNormBackwardRows<T, W> v) {
  __shared__ RowSums partial[kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* grad = v.grad_row(row);
    const T* x = v.x_row(row);
    T* dx = v.dx_row(row);

    // both sums
    RowSums sums;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      const float weight = v.weight == nullptr ? 1.0f : to_float(v.weight[i]);
      const float value = to_float(x[i]);
      sums.square = fmaf(value, value, sums.square);
      sums.product = fmaf(to_float(grad[i]) * weight, value, sums.product);
    }
    const RowFactors factors = row_factors(block_sums(sums, partial), static_cast<float>(v.cols), v.eps);
    if (threadIdx.x == 0 && v.rstd != nullptr) v.rstd[row] = factors.scale;

    // dx
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      const float weight = v.weight == nullptr ? 1.0f : to_float(v.weight[i]);
      const float xhat = to_float(x[i]) * factors.scale;
      dx[i] = from_float<T>(factors.scale * fmaf(-xhat, factors.mean, to_float(grad[i]) * weight));
    }
    __syncthreads();  // the next row overwrites partial
  }
}

// partial[chunk][col] = sum of grad * x * rstd over the rows of the chunk.
template <class T, class W>
__global__ void __launch_bounds__(kColumnBlock) rms_norm_backward_chunks_kernel(const RmsNormBackwardRows<T, W> v) {
  const int64_t col = int64_t{blockIdx.x} * kColumnBlock + threadIdx.x;
  if (col >= v.cols) return;
  const int64_t chunk = (v.rows + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * chunk, end = min(first + chunk, v.rows);
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t row = first; row < end; ++row) {
    sum = fmaf(to_float(v.grad_row(row)[col]), to_float(v.x_row(row)[col]) * v.rstd[row], sum);
  }
  v.partial[blockIdx.y * v.cols + col] = sum;
}

const char* takes(const RmsNormBackwardArgs&) { return nullptr; }

void launch(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const RmsNormBackwardRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, 4, kMostThreads);
    warpsmith::launch<&rms_norm_backward_naive_kernel<T, W>>({row_grid(a.rows), threads}, stream, rows);
    if (a.partial == nullptr) return;
    const dim3 grid(static_cast<unsigned>((a.cols + kColumnBlock - 1) / kColumnBlock),
                    static_cast<unsigned>(a.most_partials));
    warpsmith::launch<&rms_norm_backward_chunks_kernel<T, W>>({grid, kColumnBlock}, stream, rows);
    sum_partials<W>(a, a.most_partials, stream);
  });
}

const Register<RmsNormBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
