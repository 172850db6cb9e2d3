// The kernels behind the rungs `naive` of the norms' gradients. `Norm` is what norm/backward.cuh describes.
#pragma once

#include "norm/backward.cuh"

namespace warpsmith {

inline constexpr int kNaiveThreads = 512;
inline constexpr int kColumnBlock = 128;

// dx, a block per row, in two sweeps. Leaves what the row's xhat takes in v.stats.
template <class Norm>
__global__ void __launch_bounds__(kNaiveThreads) norm_backward_naive_kernel(const Norm v) {
  using T = typename Norm::Value;
  __shared__ typename Norm::Partial parts[kWarp];
  const WarpShare share = WarpShare::of_block(v.cols, 1);
  const auto weight = [&](int64_t i) { return v.weight == nullptr ? 1.0f : to_float(v.weight[i]); };
  const auto bias = [&](int64_t i) {
    if constexpr (!Norm::kReadsBias) return 0.0f;
    return v.bias == nullptr ? 0.0f : to_float(v.bias[i]);
  };
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* grad = v.grad_row(row);
    const T* x = v.x_row(row);
    T* dx = v.dx_row(row);

    // the row's sums
    typename Norm::Sums sums{};
    if constexpr (Norm::kShifted) {
      sums.shift = warp_reduce(threadIdx.x < v.cols ? to_float(x[threadIdx.x]) * share.inverse_heads : 0.0f);
    }
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      v.add(sums, to_float(x[i]), to_float(grad[i]), weight(i), bias(i));
    }
    const typename Norm::Partial part = block_combine(v, v.template over_lanes<kWarp>(sums, share), parts);
    const typename Norm::Factors factors = v.template factors<false>(part, Norm::kFromOutput ? v.rstd[row] : 0.0f);
    if (threadIdx.x == 0 && v.stats != nullptr) v.keep(v.stats + row * Norm::kStats, factors);

    // dx
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      const float factor = weight(i);
      const float xhat = v.xhat(to_float(x[i]), factor, bias(i), factors);
      dx[i] = from_float<T>(v.template dx<false>(xhat, __fmul_rn(to_float(grad[i]), factor), factors));
    }
    __syncthreads();  // the next row overwrites parts
  }
}

// partial_dw[chunk][col] = sum of grad * xhat over the rows of the chunk, and partial_db the sum of grad.
template <class Norm>
__global__ void __launch_bounds__(kColumnBlock) norm_backward_chunks_kernel(const Norm v) {
  const int64_t col = int64_t{blockIdx.x} * kColumnBlock + threadIdx.x;
  if (col >= v.cols) return;
  const int64_t chunk = (v.rows + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * chunk, end = min(first + chunk, v.rows);
  const float weight = v.weight == nullptr ? 1.0f : to_float(v.weight[col]);
  const float bias = v.bias == nullptr ? 0.0f : to_float(v.bias[col]);
  float dw = 0.0f, db = 0.0f;
#pragma unroll 4
  for (int64_t row = first; row < end; ++row) {
    const float grad = to_float(v.grad_row(row)[col]);
    if (v.partial_dw != nullptr) {
      const typename Norm::Factors factors = v.kept(v.stats + row * Norm::kStats);
      dw = fmaf(grad, v.xhat(to_float(v.x_row(row)[col]), weight, bias, factors), dw);
    }
    db += grad;
  }
  if (v.partial_dw != nullptr) v.partial_dw[blockIdx.y * v.cols + col] = dw;
  if constexpr (Norm::kBiasGradient) {
    if (v.partial_db != nullptr) v.partial_db[blockIdx.y * v.cols + col] = db;
  }
}

template <class Norm>
void launch_backward_naive(const NormBackwardArgs& a, cudaStream_t stream) {
  const Norm rows(a);
  const unsigned threads = row_threads(a.cols, 4, kNaiveThreads);
  launch<&norm_backward_naive_kernel<Norm>>({row_grid(a.rows), threads}, stream, rows);
  if (a.partial_dw == nullptr && a.partial_db == nullptr) return;
  const dim3 grid(static_cast<unsigned>((a.cols + kColumnBlock - 1) / kColumnBlock),
                  static_cast<unsigned>(a.most_partials));
  launch<&norm_backward_chunks_kernel<Norm>>({grid, kColumnBlock}, stream, rows);
  sum_partials<typename Norm::Weight>(a, a.most_partials, stream);
}

}  // namespace warpsmith
