// The kernels behind `naive`: a block per row writes dh, then columns are summed for dw and db.
#pragma once

#include "norm/add_norm_backward/row.cuh"

namespace warpsmith {

inline constexpr int kMostBackwardThreads = 512;
inline constexpr int kColumnBlock = 128;

template <class Rows>
__global__ void __launch_bounds__(kMostBackwardThreads) add_norm_backward_rows_kernel(const Rows v) {
  using T = typename Rows::T;
  using H = typename Rows::H;
  using Sums = AddNormSums<Rows::kLayer>;
  __shared__ float partial[1 + Sums::kValues][kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* grad = v.grad_row(row);
    const H* h = v.h_row(row);
    const auto g = [&](int64_t i) {
      const float weight = v.weight == nullptr ? 1.0f : to_float(v.weight[i]) + v.weight_offset;
      return __fmul_rn(to_float(grad[i]), weight);  // as rounded in the sums, so that what must cancel does
    };

    // mean
    float mean = 0.0f;
    if constexpr (Rows::kLayer) {
#pragma unroll 4
      for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) mean = fmaf(to_float(h[i]), kMeanShare, mean);
      mean = block_sum(mean, partial[Sums::kValues]) * (v.inverse_count / kMeanShare);
    }

    // sums
    Sums sums;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) sums.add(to_float(h[i]) - mean, g(i));
#pragma unroll
    for (int k = 0; k < Sums::kValues; ++k) sums.value[k] = block_sum(sums.value[k], partial[k]);
    const AddNormFactors factors(v, mean, sums);
    if (threadIdx.x == 0 && v.statistics != nullptr) {
      v.statistics[row] = mean;
      v.statistics[v.rows + row] = factors.rstd;
    }

    // dh and dx
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      float d[1] = {factors.dh(factors.xhat(to_float(h[i])), g(i))};
      if (v.grad_h != nullptr) d[0] += to_float(v.grad_h_row(row)[i]);
      v.dh_row(row)[i] = from_float<H>(d[0]);
      if (v.dx != nullptr) {
        v.to_dx(d, row, i);
        v.dx_row(row)[i] = from_float<T>(d[0]);
      }
    }
    __syncthreads();  // the next row overwrites partial
  }
}

// partial[chunk][col]: the sums over the rows of the chunk.
template <class Rows>
__global__ void __launch_bounds__(kColumnBlock) add_norm_backward_chunks_kernel(const Rows v) {
  const int64_t col = int64_t{blockIdx.x} * kColumnBlock + threadIdx.x;
  if (col >= v.cols) return;
  const int64_t chunk = (v.rows + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * chunk, end = min(first + chunk, v.rows);
  float dw = 0.0f, db = 0.0f;
#pragma unroll 4
  for (int64_t row = first; row < end; ++row) {
    const float grad = to_float(v.grad_row(row)[col]);
    const float xhat = (to_float(v.h_row(row)[col]) - v.statistics[row]) * v.statistics[v.rows + row];
    dw = fmaf(grad, xhat, dw);
    db += grad;
  }
  if (v.partial_dw != nullptr) v.partial_dw[blockIdx.y * v.cols + col] = dw;
  if (v.partial_db != nullptr) v.partial_db[blockIdx.y * v.cols + col] = db;
}

template <class Rows>
void launch_naive(const AddNormBackwardArgs& a, const Rows& rows, cudaStream_t stream) {
  const LaunchConfig config{.grid = row_grid(a.rows), .block = row_threads(a.cols, 4, kMostBackwardThreads)};
  launch<&add_norm_backward_rows_kernel<Rows>>(config, stream, rows);
  if (a.statistics == nullptr) return;
  const dim3 grid(static_cast<unsigned>((a.cols + kColumnBlock - 1) / kColumnBlock),
                  static_cast<unsigned>(a.most_partials));
  launch<&add_norm_backward_chunks_kernel<Rows>>({grid, kColumnBlock}, stream, rows);
  sum_partials<typename Rows::W>(a, a.most_partials, stream);
}

}  // namespace warpsmith
