// The kernel behind `naive` and `pack`: a block per row, which goes over the row as often as it needs to. The first sweep
// adds, writes h and sums; layer norm sweeps h again for the variance; the last one normalises. Each thread reads back
// only what it wrote itself.
#pragma once

#include <type_traits>

#include "norm/add_norm/row.cuh"

namespace warpsmith {

inline constexpr int kMostSweepThreads = 512;
// Registers for fewer resident threads than fit, or a generator of random bits spills one; weights wider than x take more.
template <class Rows>
inline constexpr int kSweepBlocks = sizeof(typename Rows::W) > sizeof(typename Rows::T) ? 2 : 3;

// Width: values an access, as a std::integral_constant.
template <class Rows, class Width>
__global__ void __launch_bounds__(kMostSweepThreads, kSweepBlocks<Rows>) add_norm_sweeps_kernel(const Rows v) {
  using T = typename Rows::T;
  using R = typename Rows::R;
  constexpr int kWidth = Width::value;
  __shared__ float partial[2][kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const R* kept = v.kept_row(row);

    // add
    float sum = 0.0f;
#pragma unroll 2
    for (int64_t col = first; col < v.cols; col += step) {
      Vec<T, kWidth> x;
      Vec<R, kWidth> h{};
      load(x, v.x_row(row) + col);
      if (v.residual != nullptr) load(h, v.residual_row(row) + col);
      h = v.add(x, h, row, col);
      if (v.h != nullptr) store(v.h_row(row) + col, h);
      sum = first_sum<Rows>(sum, h);
    }
    sum = block_sum(sum, partial[0]);

    // sum
    RowStatistics statistics{};
    if constexpr (Rows::kLayer) {
      statistics.mean = sum * (v.inverse_count / kMeanShare);
      sum = 0.0f;
#pragma unroll 2
      for (int64_t col = first; col < v.cols; col += step) {
        Vec<R, kWidth> h;
        load(h, kept + col);
        sum = second_sum(sum, h, statistics.mean);
      }
      sum = block_sum(sum, partial[1]);
    }
    statistics.rstd = reciprocal_rms(sum, v.inverse_count, v.eps);

    // normalise
#pragma unroll 2
    for (int64_t col = first; col < v.cols; col += step) {
      Vec<R, kWidth> h;
      load(h, kept + col);
      store<Cache::streaming>(v.y_row(row) + col, normalise(v, h, statistics, col));
    }
    __syncthreads();  // the next row overwrites partial
  }
}

// One value an access.
template <class Rows>
void launch_naive(const Rows& rows, cudaStream_t stream) {
  constexpr int kValuesPerThread = 4;
  const LaunchConfig config{.grid = row_grid(rows.rows),
                            .block = row_threads(rows.cols, kValuesPerThread, kMostSweepThreads)};
  launch<&add_norm_sweeps_kernel<Rows, std::integral_constant<int, 1>>>(config, stream, rows);
}

// One 128-bit access at a time.
template <class Rows>
void launch_pack(const Rows& rows, cudaStream_t stream) {
  constexpr int kPacksPerThread = 2;
  const LaunchConfig config{.grid = row_grid(rows.rows),
                            .block = row_threads(rows.cols, kPacksPerThread * Rows::kWidth, kMostSweepThreads)};
  launch<&add_norm_sweeps_kernel<Rows, std::integral_constant<int, Rows::kWidth>>>(config, stream, rows);
}

}  // namespace warpsmith
