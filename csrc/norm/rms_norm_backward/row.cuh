// Typed arguments of the rms_norm_backward rungs, and the sum of their partial dw.
#pragma once

#include "host/launch.h"
#include "host/registry.h"
#include "norm/rms_norm_backward/rms_norm_backward.h"
#include "norm/row.cuh"

namespace warpsmith {

// T: grad, x, dx. W: weight, dw.
template <class T, class W>
struct RmsNormBackwardRows {
  const T* grad;    // [rows, cols], grad_stride elements apart
  const T* x;       // [rows, cols], x_stride elements apart
  const W* weight;  // [cols] or null
  T* dx;            // [rows, cols]
  float* partial;   // [partials, cols] or null
  float* rstd;      // [rows] or null
  int64_t rows, cols, grad_stride, x_stride;
  float eps;

  explicit RmsNormBackwardRows(const RmsNormBackwardArgs& a)
      : grad(static_cast<const T*>(a.grad)),
        x(static_cast<const T*>(a.x)),
        weight(static_cast<const W*>(a.weight)),
        dx(static_cast<T*>(a.dx)),
        partial(a.partial),
        rstd(a.rstd),
        rows(a.rows),
        cols(a.cols),
        grad_stride(a.grad_stride),
        x_stride(a.x_stride),
        eps(a.eps) {}

  __device__ const T* grad_row(int64_t row) const { return grad + row * grad_stride; }
  __device__ const T* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ T* dx_row(int64_t row) const { return dx + row * cols; }
};

// What one sweep over a row adds up.
struct RowSums {
  float square = 0.0f;   // x^2
  float product = 0.0f;  // grad * weight * x
};

struct AddSums {
  __device__ __forceinline__ RowSums operator()(const RowSums& a, const RowSums& b) const {
    return {a.square + b.square, a.product + b.product};
  }
};

template <int lanes = kWarp>
__device__ __forceinline__ RowSums warp_sums(RowSums sums) {
  return {warp_reduce<lanes>(sums.square), warp_reduce<lanes>(sums.product)};
}

// Over the block; every thread gets the sums. Two calls in a row need two buffers.
__device__ __forceinline__ RowSums block_sums(RowSums sums, RowSums (&partial)[kWarp]) {
  sums = warp_sums(sums);
  const int warps = blockDim.x / kWarp;
  if (warps == 1) return sums;
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = sums;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return warp_sums(lane < warps ? partial[lane] : RowSums{});
}

// With xhat = x * scale: dx = scale * (grad * weight - xhat * mean), and dw gets grad * xhat.
struct RowFactors {
  float scale;  // 1 / rms
  float mean;   // of grad * weight * xhat
};

__device__ __forceinline__ RowFactors row_factors(const RowSums& sums, float cols, float eps) {
  const float inverse_count = __frcp_rn(cols);
  const float scale = reciprocal_rms(sums.square, inverse_count, eps);
  return {scale, scale * sums.product * inverse_count};
}

constexpr int kColumnThreads = 512;

// dw[col] = sum of partial[i][col] over i. A block is [lanes, columns] threads: lane by lane down the partials, then a
// tree over the lanes, always in the same order.
template <class W>
__global__ void __launch_bounds__(kColumnThreads)
    rms_norm_backward_columns_kernel(W* dw, const float* partial, int partials, int64_t cols, int columns) {
  __shared__ float sums[kColumnThreads];  // [lanes, columns]
  const int tid = threadIdx.x, lanes = kColumnThreads / columns;
  const int column = tid % columns, lane = tid / columns;
  const int64_t col = int64_t{blockIdx.x} * columns + column;
  float sum = 0.0f;
  if (col < cols) {
#pragma unroll 8
    for (int i = lane; i < partials; i += lanes) sum += partial[i * cols + col];
  }
  sums[tid] = sum;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) sums[tid] += sums[tid + half * columns];
    __syncthreads();
  }
  if (lane == 0 && col < cols) dw[col] = from_float<W>(sums[tid]);
}

// After a rung has left `partials` rows in a.partial.
template <class W>
void sum_partials(const RmsNormBackwardArgs& a, int64_t partials, cudaStream_t stream) {
  if (a.partial == nullptr) return;
  int lanes = 1;
  while (lanes < 64 && lanes * 8 < partials) lanes *= 2;
  const int columns = kColumnThreads / lanes;
  const auto grid = static_cast<unsigned>((a.cols + columns - 1) / columns);
  launch<&rms_norm_backward_columns_kernel<W>>({grid, kColumnThreads}, stream, static_cast<W*>(a.dw),
                                               static_cast<const float*>(a.partial), static_cast<int>(partials), a.cols,
                                               columns);
}

}  // namespace warpsmith
