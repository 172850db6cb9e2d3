// RMS norm, two 16-bit values an access.
//   Against `shuffle`: half of the loads and stores, and a 16-bit accumulator adds two squares an instruction.
//   Bound: still the number of memory instructions, at 4 bytes each.
#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kWidth = 2;
constexpr int kValuesPerThread = 8;
constexpr int kMostThreads = 512;

template <class T, class W, class A>
__global__ void __launch_bounds__(kMostThreads) rms_norm_x2_kernel(const RmsNormRows<T, W> v) {
  __shared__ A partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // square and sum
    A sum = from_float<A>(0.0f);
    for (int64_t col = first; col < v.cols; col += step) {
      Vec<T, kWidth> values;
      load(values, x + col);
      sum = add_squares(sum, values);
    }
    sum = block_sum(scaled(sum, v.partial_scale), partial);
    const float scale = reciprocal_rms(to_float(sum), v.inverse_count, v.eps);

    // normalise
    for (int64_t col = first; col < v.cols; col += step) {
      Vec<T, kWidth> values;
      WeightPack<W, kWidth> weight;
      load(values, x + col);
      weight.load_from(v.weight, col);
      store(y + col, normalise(values, scale, weight));
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class W, class A>() {
    if constexpr (sizeof(T) == 2) {
      const RmsNormRows<T, W> rows(a);
      const unsigned threads = row_threads(a.cols, kValuesPerThread, kMostThreads);
      warpsmith::launch<&rms_norm_x2_kernel<T, W, A>>({row_grid(a.rows), threads}, stream, rows);
    }
  });
}

const char* takes(const RmsNormArgs& a) { return a.dtype == Dtype::f32 ? "takes f16 and bf16" : needs_pairs(a); }

const Register<RmsNormArgs> registered{"x2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
