// The launch that adds up what blocks leave of the gradients of weight and bias. Several rungs make it, so that
// sum_partials.cu compiles it once for all of them, and nothing else includes this.
#pragma once

#include "device/convert.h"
#include "device/ptx/barrier.h"
#include "host/launch.h"
#include "norm/backward/column_sums.cuh"

namespace warpsmith {

inline constexpr int kColumnSumThreads = 512;

// The gradients of weight and bias, or the one of them that is asked for.
struct ColumnSums {
  void* out[2];             // [cols]
  const float* partial[2];  // [partials, cols]
  Dtype dtype;              // of out
};

// out[col] = sum of partial[i][col] over i. A block is [lanes, columns] threads: lane by lane down the partials, then a
// tree over the lanes, always in the same order.
__global__ void __launch_bounds__(kColumnSumThreads)
    norm_backward_columns_kernel(const ColumnSums v, int partials, int64_t cols, int columns) {
  __shared__ float sums[kColumnSumThreads];  // [lanes, columns]
  const bool first = blockIdx.y == 0;        // an index would put the parameters on the stack
  const float* partial = first ? v.partial[0] : v.partial[1];
  const int tid = threadIdx.x, lanes = kColumnSumThreads / columns;
  const int column = tid % columns, lane = tid / columns;
  const int64_t col = int64_t{blockIdx.x} * columns + column;
  float sum = 0.0f;
  ptx::wait_for_previous_grid();
  if (col < cols) {
#pragma unroll 8
    for (int i = lane; i < partials; i += lanes) sum += partial[i * cols + col];
  }
  sums[tid] = sum;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) sums[tid] += sums[tid + half * columns];
    __syncthreads();
  }
  if (lane != 0 || col >= cols) return;
  void* const out = first ? v.out[0] : v.out[1];
  if (v.dtype == Dtype::f32) {
    static_cast<float*>(out)[col] = sums[tid];
  } else if (v.dtype == Dtype::f16) {
    static_cast<f16*>(out)[col] = from_float<f16>(sums[tid]);
  } else {
    static_cast<bf16*>(out)[col] = from_float<bf16>(sums[tid]);
  }
}

void sum_partials(const NormBackwardArgs& a, int64_t partials, cudaStream_t stream) {
  ColumnSums sums{.dtype = a.weight_dtype};
  unsigned count = 0;
  const auto add = [&](void* out, const float* partial) {
    if (partial == nullptr) return;
    sums.out[count] = out;
    sums.partial[count++] = partial;
  };
  add(a.dw, a.partial_dw);
  add(a.db, a.partial_db);
  if (count == 0) return;
  int lanes = 1;
  while (lanes < 64 && lanes * 8 < partials) lanes *= 2;
  const int columns = kColumnSumThreads / lanes;
  const dim3 grid(static_cast<unsigned>((a.cols + columns - 1) / columns), count);
  launch<&norm_backward_columns_kernel>({.grid = grid, .block = kColumnSumThreads, .early = true}, stream, sums,
                                        static_cast<int>(partials), a.cols, columns);
}

}  // namespace warpsmith
