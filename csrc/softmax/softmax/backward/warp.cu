// Softmax backward, a warp or a part of one per row, both rows held in registers: rows of at most 1024 values.
//   Against `pack`: both inputs are read once, nothing passes through shared memory, nobody waits at a barrier, and short
//   rows share a warp. Lanes read neighbouring values one at a time, so any alignment will do. Bound: the number of load
//   instructions for 16-bit data, DRAM for f32.
#include "host/tiles.h"
#include "softmax/softmax/backward/gradient.cuh"
#include "softmax/softmax/warp_tiles.h"

namespace warpsmith {
namespace {

template <class T, class Gradient, class Tile>
__global__ void __launch_bounds__(Tile::threads) softmax_backward_warp_kernel(const SoftmaxBackwardRows<T> v) {
  const int lane = threadIdx.x % Tile::lanes, group = threadIdx.x / Tile::lanes;
  const int64_t step = int64_t{gridDim.x} * Tile::rows_per_block;
  // Whole blocks go round, because every lane of a warp has to take part in its shuffles.
  for (int64_t first = int64_t{blockIdx.x} * Tile::rows_per_block; first < v.rows; first += step) {
    const int64_t row = first + group;
    const int cols = row < v.rows ? static_cast<int>(v.cols) : 0;

    // load
    const T* grad = v.grad_row(row);
    const T* y = v.y_row(row);
    T grads[Tile::values], values[Tile::values];
#pragma unroll
    for (int i = 0; i < Tile::values; ++i) {
      const int col = i * Tile::lanes + lane;
      grads[i] = col < cols ? grad[col] : from_float<T>(0.0f);
      values[i] = col < cols ? y[col] : from_float<T>(0.0f);
    }

    // sum
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Tile::values; ++i) sum = Gradient::add(sum, to_float(grads[i]), to_float(values[i]));
    sum = warp_reduce<Tile::lanes>(sum);

    // gradient
    T* dx = v.dx_row(row);
#pragma unroll
    for (int i = 0; i < Tile::values; ++i) {
      const int col = i * Tile::lanes + lane;
      if (col < cols) dx[col] = from_float<T>(Gradient::finish(to_float(grads[i]), to_float(values[i]), sum));
    }
  }
}

template <class T, class Gradient, class Tile>
void launch_tile(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  const unsigned grid = row_grid((a.rows + Tile::rows_per_block - 1) / Tile::rows_per_block);
  const SoftmaxBackwardRows<T> rows(a);
  warpsmith::launch<&softmax_backward_warp_kernel<T, Gradient, Tile>>({grid, Tile::threads}, stream, rows);
}

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  const auto holds = [&]<class Tile>() { return a.cols <= Tile::most_cols; };
  visit_gradients(a, [&]<class T, class Gradient>() {
    with_first_tile(WarpTiles{}, holds, [&]<class Tile>() { launch_tile<T, Gradient, Tile>(a, stream); });
  });
}

const char* takes(const SoftmaxBackwardArgs& a) { return unmet({needs_rows(a), needs_columns<kMostWarpCols>(a.cols)}); }

const Register<SoftmaxBackwardArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
