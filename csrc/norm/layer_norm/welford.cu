// Layer norm, mean and variance in one sweep.
//   Against `pack`: a thread keeps mean and squared deviation of what it has seen and merges them with those of the next
//   pack; threads merge alike. One sweep for the statistics instead of two. Bound: the row is read twice, the second time
//   from L2 where it still lies there.
// Welford 1962, "Note on a Method for Calculating Corrected Sums of Squares and Products"; merged after Chan, Golub &
// LeVeque 1983.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

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

template <class Row, class Way>
__global__ void __launch_bounds__(Way::kMostThreads, Way::kMinBlocks) layer_norm_welford_kernel(const Row v) {
  using T = typename Row::Value;
  __shared__ Moments partial[kWarp];
  const int64_t first = int64_t{kPack<T>} * threadIdx.x, step = int64_t{kPack<T>} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    // mean and squared deviation
    Moments moments{};
#pragma unroll 4
    for (int64_t col = first; col < v.cols; col += step) {
      Pack<T> values;
      load(values, v.x_row(row) + col);
      const Moments next = moments_of<T>(values);
      moments = moments.count > 0.0f ? merge(moments, next) : next;
    }
    const RowStatistics statistics = v.total(block_merge(moments, partial));
    if (threadIdx.x == 0) v.keep(row, statistics);
    write_row<Way>(v, row, statistics);
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const LayerNormArgs& a) { return unmet({needs_packs(a), needs_f32_sums(a)}); }

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_norm<OfX>(a, [&]<class Row>() {
    using Packs = Way<InAccesses<Row::kWidth>, ByShuffles, 512, 2>;
    const LaunchConfig config{.grid = row_grid(a.rows),
                              .block = row_threads(a.cols, 2 * Row::kWidth, Packs::kMostThreads)};
    warpsmith::launch<&layer_norm_welford_kernel<Row, Packs>>(config, stream, Row(a));
  });
}

const Register<LayerNormArgs> registered{"welford", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
