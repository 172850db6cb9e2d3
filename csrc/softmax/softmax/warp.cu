// Softmax, a warp or a part of one per row, the row held in registers: rows of at most 1024 values.
//   Against `online_pack`: x is read once, nothing passes through shared memory, nobody waits at a barrier, and short rows
//   share a warp. Lanes read neighbouring values one at a time, so any alignment will do. Bound: the number of load
//   instructions for 16-bit data, DRAM for f32.
#include "host/tiles.h"
#include "softmax/softmax/result.cuh"
#include "softmax/softmax/warp_tiles.h"

namespace warpsmith {
namespace {

template <class T, class Result, class Tile>
__global__ void __launch_bounds__(Tile::threads) softmax_warp_kernel(const SoftmaxRows<T> v) {
  const int lane = threadIdx.x % Tile::lanes, group = threadIdx.x / Tile::lanes;
  const int64_t step = int64_t{gridDim.x} * Tile::rows_per_block;
  // Whole blocks go round, because every lane of a warp has to take part in its shuffles.
  for (int64_t first = int64_t{blockIdx.x} * Tile::rows_per_block; first < v.rows; first += step) {
    const int64_t row = first + group;
    const int cols = row < v.rows ? static_cast<int>(v.cols) : 0;

    // load
    const T* x = v.x_row(row);
    float values[Tile::values];
#pragma unroll
    for (int i = 0; i < Tile::values; ++i) {
      const int col = i * Tile::lanes + lane;
      values[i] = col < cols ? to_float(x[col]) : -INFINITY;
    }

    // maximum and sum
    float max = kLowest, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Tile::values; ++i) max = fmaxf(max, values[i]);
    max = warp_reduce<Tile::lanes>(max, Largest{});
#pragma unroll
    for (int i = 0; i < Tile::values; ++i) sum += exponential<T>(values[i] - max);
    sum = warp_reduce<Tile::lanes>(sum);

    // results
    const Result result(max, sum);
    T* y = v.y_row(row);
#pragma unroll
    for (int i = 0; i < Tile::values; ++i) {
      const int col = i * Tile::lanes + lane;
      if (col < cols) y[col] = from_float<T>(result(values[i]));
    }
  }
}

template <class T, class Result, class Tile>
void launch_tile(const SoftmaxArgs& a, cudaStream_t stream) {
  const unsigned grid = row_grid((a.rows + Tile::rows_per_block - 1) / Tile::rows_per_block);
  warpsmith::launch<&softmax_warp_kernel<T, Result, Tile>>({grid, Tile::threads}, stream, SoftmaxRows<T>(a));
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  const auto holds = [&]<class Tile>() { return a.cols <= Tile::most_cols; };
  visit_results(a, [&]<class T, class Result>() {
    with_first_tile(WarpTiles{}, holds, [&]<class Tile>() { launch_tile<T, Result, Tile>(a, stream); });
  });
}

const char* takes(const SoftmaxArgs& a) { return unmet({needs_rows(a), needs_columns<kMostWarpCols>(a.cols)}); }

const Register<SoftmaxArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
