// RMS norm, a block per row, summed by warp shuffles.
//   Against `tree`: lanes exchange registers instead of shared memory, so one barrier replaces eight, and short rows
//   get fewer threads. Bound: the number of load instructions, one value each.
#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kValuesPerThread = 4;
constexpr int kMostThreads = 512;

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads) rms_norm_shuffle_kernel(const RmsNormRows<T, W> v) {
  __shared__ A partial[kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // square and sum
    A sum = from_float<A>(0.0f);
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) sum = add_square(sum, x[i]);
    sum = block_sum(scaled(sum, v.partial_scale), partial);
    const float scale = reciprocal_rms(to_float(sum), v.inverse_count, v.eps);

    // normalise
    for (int64_t i = threadIdx.x; i < v.cols; i += blockDim.x) {
      const float weight = v.weight == nullptr ? 1.0f : to_float(v.weight[i]);
      y[i] = from_float<T>(to_float(x[i]) * scale * weight);
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const RmsNormArgs&) { return nullptr; }

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    const RmsNormRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
    warpsmith::launch<&rms_norm_shuffle_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<RmsNormArgs> registered{"shuffle", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
