// RMS norm, 16 bytes a thread and step as separate loads.
//   Against `shuffle`: a thread has four or eight independent loads in flight before it needs the first, so it waits
//   for memory once per step; any alignment. Bound: memory instructions, one per value.
#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads) rms_norm_unroll_kernel(const RmsNormRows<T, W> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ A partial[kWarp];
  const int64_t step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // square and sum: neighbouring threads read neighbouring values, blockDim.x apart from load to load
    A sum = from_float<A>(0.0f);
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
      T values[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        values[i] = at < v.cols ? x[at] : from_float<T>(0.0f);
      }
      A step_sum = from_float<A>(0.0f);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) step_sum = add_square(step_sum, values[i]);
      sum = Add{}(sum, step_sum);
    }
    sum = block_sum(scaled(sum, v.partial_scale), partial);
    const float scale = reciprocal_rms(to_float(sum), v.inverse_count, v.eps);

    // normalise
    for (int64_t col = threadIdx.x; col < v.cols; col += step) {
      T values[kWidth];
      float weight[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        if (at < v.cols) {
          values[i] = x[at];
          weight[i] = v.weight == nullptr ? 1.0f : to_float(v.weight[at]);
        }
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int64_t at = col + int64_t{i} * blockDim.x;
        if (at < v.cols) y[at] = from_float<T>(to_float(values[i]) * scale * weight[i]);
      }
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const RmsNormArgs&) { return nullptr; }

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const RmsNormRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, kPack<T>, kMostThreads);
    warpsmith::launch<&rms_norm_unroll_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<RmsNormArgs> registered{"unroll", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
