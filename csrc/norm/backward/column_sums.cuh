// The gradients of weight and bias: what threads add up of their columns over many rows, and the sum of what blocks leave.
#pragma once

#include "device/convert.h"
#include "device/ptx/barrier.h"
#include "host/launch.h"
#include "host/registry.h"
#include "norm/backward/args.h"

namespace warpsmith {

// A sum of products over many rows.
struct PlainSum {
  float sum = 0.0f;
  __device__ __forceinline__ void add(float a, float b) { sum = fmaf(a, b, sum); }
};

// The same with what rounding loses carried along (Kahan 1965).
struct CompensatedSum {
  float sum = 0.0f, lost = 0.0f;
  __device__ __forceinline__ void add(float a, float b) {
    const float term = fmaf(a, b, -lost), next = sum + term;
    lost = (next - sum) - term;
    lost = fabsf(lost) < INFINITY ? lost : 0.0f;  // an infinite sum has lost nothing
    sum = next;
  }
};

// A thread's share of dw and db, in registers: of `packs` packs of `width` columns each.
template <class Sum, int packs, int width, bool has_bias>
struct OwnColumnSums {
  Sum dw[packs][width], db[has_bias ? packs : 1][width];

  __device__ __forceinline__ void add(int i, int j, float grad, float xhat) {
    dw[i][j].add(grad, xhat);
    if constexpr (has_bias) db[i][j].add(grad, 1.0f);
  }
  // Calls body(partial, sums) for each gradient that is asked for.
  template <class Body>
  __device__ __forceinline__ void each(float* partial_dw, float* partial_db, Body&& body) const {
    if (partial_dw != nullptr) body(partial_dw, dw);
    if constexpr (has_bias) {
      if (partial_db != nullptr) body(partial_db, db);
    }
  }
};

// Writes a pack's sums.
template <int width, class Sum>
__device__ __forceinline__ void store_sums(float* to, const Sum (&sums)[width]) {
#pragma unroll
  for (int j = 0; j < width; j += 4) {
    *reinterpret_cast<float4*>(to + j) = {sums[j].sum, sums[j + 1].sum, sums[j + 2].sum, sums[j + 3].sum};
  }
}

// The gradients of weight and bias, or the one of them that is asked for.
struct ColumnSums {
  void* out[2];             // [cols]
  const float* partial[2];  // [partials, cols]
  Dtype dtype;              // of out
};

// out[col] = sum of partial[i][col] over i. A block is [lanes, columns] threads: lane by lane down the partials, then a
// tree over the lanes, always in the same order.
template <int threads>
__global__ void __launch_bounds__(threads)
    norm_backward_columns_kernel(const ColumnSums v, int partials, int64_t cols, int columns) {
  __shared__ float sums[threads];      // [lanes, columns]
  const bool first = blockIdx.y == 0;  // an index would put the parameters on the stack
  const float* partial = first ? v.partial[0] : v.partial[1];
  const int tid = threadIdx.x, lanes = threads / columns;
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

// After a rung has left `partials` rows of each in the workspace.
inline void sum_partials(const NormBackwardArgs& a, int64_t partials, cudaStream_t stream) {
  constexpr int kThreads = 512;
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
  const int columns = kThreads / lanes;
  const dim3 grid(static_cast<unsigned>((a.cols + columns - 1) / columns), count);
  launch<&norm_backward_columns_kernel<kThreads>>({.grid = grid, .block = kThreads, .early = true}, stream, sums,
                                                  static_cast<int>(partials), a.cols, columns);
}

}  // namespace warpsmith
