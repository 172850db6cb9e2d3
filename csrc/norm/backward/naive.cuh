// The kernels behind the rungs `naive` of the norms' gradients: a block per row writes dx, then columns are summed for the
// gradients of weight and bias. `Norm` is what norm/backward/norms.cuh describes.
#pragma once

#include "norm/backward/column_sums.cuh"
#include "norm/backward/norms.cuh"

namespace warpsmith {

inline constexpr int kNaiveThreads = 512;
inline constexpr int kColumnBlock = 128;

// One value of grad, of any dtype where the rows allow that.
template <class Norm>
__device__ __forceinline__ float grad_at(const Norm& v, const char* grad_row, int64_t col) {
  float value = 0.0f;
  const auto read = [&]<class T>() { value = to_float(reinterpret_cast<const T*>(grad_row)[col]); };
  if constexpr (Norm::kAnyGrad) {
    with_float_type(v.grad_dtype, read);
  } else {
    read.template operator()<typename Norm::X>();
  }
  return value;
}

// dx, a block per row, in two sweeps. Leaves what the row's xhat takes in v.stats.
template <class Norm>
__global__ void __launch_bounds__(kNaiveThreads, 3) norm_backward_naive_kernel(const Norm v) {
  using X = typename Norm::X;
  __shared__ typename Norm::Partial parts[kWarp];
  __shared__ float resums[kWarp];
  const WarpShare share = WarpShare::of_block(v.cols, 1);
  const auto weight = [&](int64_t i) { return v.weight.at(i) + (Norm::kResidual ? v.weight_offset : 0.0f); };
  const auto bias = [&](int64_t i) { return Norm::kReadsBias ? v.bias.at(i) : 0.0f; };
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const char* grad = v.grad_row(row);
    const X* x = v.x_row(row);
    X* dx = v.dx_row(row);

    // the row's sums
    typename Norm::Sums sums{};
    if constexpr (Norm::kFromOutput) sums.rstd = v.rstd[row];
    if constexpr (Norm::kShifted) {
      sums.shift = warp_reduce(threadIdx.x < v.cols ? to_float(x[threadIdx.x]) * share.inverse_heads : 0.0f);
    }
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      v.add(sums, to_float(x[i]), grad_at(v, grad, i), weight(i), bias(i));
    }
    const typename Norm::Partial part = block_combine(v, v.template over_lanes<kWarp>(sums, share), parts);
    typename Norm::Factors factors = v.template factors<false>(part);
    if constexpr (Norm::kResums) {
      if (v.lost(factors)) {
        float product = 0.0f;
        for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
          product = fmaf(__fmul_rn(grad_at(v, grad, i), weight(i)), to_float(x[i]) - factors.mean, product);
        }
        v.template mend<false>(factors, block_sum(product, resums));
      }
    }
    if (threadIdx.x == 0 && v.stats != nullptr) v.keep(v.stats + row * Norm::kStats, factors);

    // dx
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      const float factor = weight(i), more = v.grad_x == nullptr ? 0.0f : to_float(v.grad_x_row(row)[i]);
      const float xhat = v.xhat(to_float(x[i]), factor, bias(i), factors);
      float d[1] = {v.template dx<false>(xhat, __fmul_rn(grad_at(v, grad, i), factor), more, factors)};
      dx[i] = from_float<X>(d[0]);
      if constexpr (Norm::kResidual) {
        if (v.branch_dx == nullptr) continue;
        v.source.to_branch(d, row, i);
        with_float_type(v.grad_dtype,
                        [&]<class T>() { static_cast<T*>(v.branch_dx)[row * v.cols + i] = from_float<T>(d[0]); });
      }
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
  const float weight = Norm::kFromOutput ? v.weight.at(col) : 1.0f;
  const float bias = Norm::kReadsBias ? v.bias.at(col) : 0.0f;
  float dw = 0.0f, db = 0.0f;
#pragma unroll 4
  for (int64_t row = first; row < end; ++row) {
    const float grad = grad_at(v, v.grad_row(row), col);
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

template <class Norms>
void launch_backward_naive(const NormBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class X>() {
    using Norm = typename Norms::template Of<X>;
    const Norm rows(a);
    const unsigned threads = row_threads(a.cols, 4, kNaiveThreads);
    launch<&norm_backward_naive_kernel<Norm>>({row_grid(a.rows), threads}, stream, rows);
    if (a.partial_dw == nullptr && a.partial_db == nullptr) return;
    const dim3 grid(static_cast<unsigned>((a.cols + kColumnBlock - 1) / kColumnBlock),
                    static_cast<unsigned>(a.most_partials));
    launch<&norm_backward_chunks_kernel<Norm>>({grid, kColumnBlock}, stream, rows);
    sum_partials(a, a.most_partials, stream);
  });
}

}  // namespace warpsmith
