// Layer norm, mean and variance in one sweep.
//   Against `pack`: a thread keeps mean and squared deviation of what it has seen and merges them with those of the next
//   pack; threads merge alike. One sweep for the statistics instead of two. Bound: the row is read twice, the second time
//   from L2 where it still lies there.
// Welford 1962, "Note on a Method for Calculating Corrected Sums of Squares and Products"; merged after Chan, Golub &
// LeVeque 1983.
#include "device/moments.h"
#include "norm/layer_norm/row.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 2;
constexpr int kMostThreads = 512;

// In pairs: the mean of equal values is that value.
template <class T>
__device__ __forceinline__ Moments moments_of(const Pack<T>& pack) {
  constexpr int kWidth = kPack<T>;
  float values[kWidth], sums[kWidth];
  to_float(values, pack);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[i] = values[i] * (1.0f / kWidth);  // lest they add up beyond the range
#pragma unroll
  for (int half = kWidth / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  const float mean = sums[0];
  float m2 = 0.0f;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) m2 = fmaf(values[i] - mean, values[i] - mean, m2);
  return {kWidth, mean, m2};
}

template <class T, class W>
__global__ void __launch_bounds__(kMostThreads) layer_norm_welford_kernel(const LayerNormRows<T, W> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ Moments partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // mean and squared deviation
    Moments moments{};
#pragma unroll 4
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, x + col);
      const Moments next = moments_of<T>(values);
      moments = moments.count > 0.0f ? merge(moments, next) : next;
    }
    moments = block_merge(moments, partial);
    const RowStats stats{moments.mean, rsqrtf(fmaf(moments.m2, v.inverse_count, v.eps))};
    if (threadIdx.x == 0) v.keep(row, stats);

    // normalise
#pragma unroll 2
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      WeightPack<W, kWidth> weight, bias;
      load(values, x + col);
      weight.load_from(v.weight, col);
      bias.load_from(v.bias, col, 0.0f);
      store<Cache::streaming>(y + col, normalise(values, stats, weight, bias));
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const LayerNormRows<T, W> rows(a);
    const unsigned threads = row_threads(a.cols, kPacksPerThread * kPack<T>, kMostThreads);
    warpsmith::launch<&layer_norm_welford_kernel<T, W>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const char* takes(const LayerNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.accumulator == Dtype::f32 ? nullptr : "accumulates in f32";
}

const Register<LayerNormArgs> registered{"welford", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
