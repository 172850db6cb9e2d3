// What the kernels of the norms' gradients share. They know a norm by a struct on top of NormBackwardRows:
//
//   struct Norm : NormBackwardRows<T, W> {
//     static constexpr bool kShifted;      // add() sums around `Sums::shift`, some value near the mean of the row
//     static constexpr bool kFromOutput;   // x is the norm's output, and the row's rstd is given
//     static constexpr bool kReadsBias;
//     static constexpr bool kBiasGradient;
//     static constexpr int kStats;         // floats by which `naive` finds xhat again: those that keep() writes
//     struct Sums { ... };                 // what a thread adds up over its part of a row, in one sweep
//     using Partial = ...;                 // what a warp hands on about its part of a row: floats
//     struct Factors { ... };              // what xhat and dx of a row take
//     void add(Sums&, float x, float grad, float weight, float bias) const;
//     Partial over_lanes<lanes>(const Sums&, const WarpShare&) const;     // over `lanes` neighbours
//     Partial combine<most>(const Partial* parts, int count) const;       // most: a power of two; run by whole warps
//     Partial combine_some(const Partial* parts, int count) const;        // of those not all, at most 32; for `merged`
//     Factors factors<lean>(const Partial& row, float rstd) const;
//     float xhat(float x, float weight, float bias, const Factors&) const;
//     float dx<lean>(float xhat, float scaled, const Factors&) const;     // scaled: grad * weight
//     void keep(float* stats, const Factors&) const;
//     Factors kept(const float* stats) const;
//   };
//
// Products of grad and weight are rounded (__fmul_rn) wherever they are formed: contracted in one place and rounded in
// another, what must cancel exactly would not. In a lean dx it cancels but for what rounding each term to f32 leaves: one
// instruction fewer a value, where rows are longer than a value or two and dx has 16 bits.
#pragma once

#include "device/ptx/barrier.h"
#include "host/launch.h"
#include "host/registry.h"
#include "norm/backward.h"
#include "norm/row.cuh"

namespace warpsmith {

// T: grad, x, dx. W: weight, bias, dw, db.
template <class T, class W>
struct NormBackwardRows {
  using Value = T;
  using Weight = W;

  const T* grad;      // [rows, cols], grad_stride elements apart
  const T* x;         // [rows, cols], x_stride elements apart
  const W* weight;    // [cols] or null
  T* dx_rows;         // [rows, cols]
  float* partial_dw;  // [partials, cols] or null
  float* stats;       // [rows, kStats] or null
  int64_t rows, cols, grad_stride, x_stride;
  float eps;
  float inverse_cols;
  const W* bias;      // [cols] or null
  const float* rstd;  // [rows] or null
  float* partial_db;  // [partials, cols] or null

  explicit NormBackwardRows(const NormBackwardArgs& a)
      : grad(static_cast<const T*>(a.grad)),
        x(static_cast<const T*>(a.x)),
        weight(static_cast<const W*>(a.weight)),
        dx_rows(static_cast<T*>(a.dx)),
        partial_dw(a.partial_dw),
        stats(a.stats),
        rows(a.rows),
        cols(a.cols),
        grad_stride(a.grad_stride),
        x_stride(a.x_stride),
        eps(a.eps),
        inverse_cols(1.0f / static_cast<float>(a.cols)),
        bias(static_cast<const W*>(a.bias)),
        rstd(a.rstd),
        partial_db(a.partial_db) {}

  __device__ const T* grad_row(int64_t row) const { return grad + row * grad_stride; }
  __device__ const T* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ T* dx_row(int64_t row) const { return dx_rows + row * cols; }
};

// --- sums over a row ---

// What a warp has of a row.
struct WarpShare {
  float count;          // values
  float inverse_count;  // 0 for none
  float inverse_heads;  // of the lanes that have a value at all, 0 for none

  // Of `items` of `width` values, which go round the threads of the block.
  __device__ static WarpShare of_block(int64_t items, int width) {
    const int first = threadIdx.x / kWarp * kWarp;
    const auto within = [&](int64_t n) { return static_cast<int>(min(max(n - first, int64_t{0}), int64_t{kWarp})); };
    const auto inverse = [](float x) { return x > 0.0f ? 1.0f / x : 0.0f; };
    const int threads = blockDim.x;
    const float count = static_cast<float>((items / threads * kWarp + within(items % threads)) * width);
    return {count, inverse(count), inverse(static_cast<float>(within(items)))};
  }
};

template <class Floats>
inline constexpr int kFloats = static_cast<int>(sizeof(Floats) / sizeof(float));

// A struct of floats, each of them summed over `lanes` neighbours.
template <int lanes = kWarp, class Floats>
__device__ __forceinline__ Floats warp_sums(Floats sums) {
  warp_reduce_all<lanes>(reinterpret_cast<float (&)[kFloats<Floats>]>(sums));
  return sums;
}

// Lanes over which `most` values, one in each or several, are to be summed.
template <int most>
inline constexpr int kSumLanes = most < kWarp ? most : kWarp;

// The same over `count` of them in shared memory, at most `most`.
template <int most, class Floats>
__device__ __forceinline__ Floats total_of(const Floats* parts, int count) {
  constexpr int kLanes = kSumLanes<most>;
  const int lane = threadIdx.x % kLanes;
  Floats sums = lane < count ? parts[lane] : Floats{};
  auto& each = reinterpret_cast<float (&)[kFloats<Floats>]>(sums);
#pragma unroll
  for (int i = kLanes; i < most; i += kLanes) {
    if (i + lane >= count) continue;
    const Floats part = parts[i + lane];
    const auto& more = reinterpret_cast<const float (&)[kFloats<Floats>]>(part);
#pragma unroll
    for (int k = 0; k < kFloats<Floats>; ++k) each[k] += more[k];
  }
  return warp_sums<kLanes>(sums);
}

// Over the block, of at most `most` warps; every thread gets the row's Partial. Two calls in a row need two buffers.
template <int most, class Norm>
__device__ __forceinline__ typename Norm::Partial block_combine(const Norm& v, const typename Norm::Partial& mine,
                                                                typename Norm::Partial (&parts)[most]) {
  const int warps = blockDim.x / kWarp;
  if (warps == 1) return mine;
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = mine;
  __syncthreads();
  return v.template combine<most>(parts, warps);
}

// --- dw and db from their partial sums ---

constexpr int kColumnThreads = 512;

// The gradients of weight and bias, or the one of them that is asked for.
template <class W>
struct ColumnSums {
  W* out[2];                // [cols]
  const float* partial[2];  // [partials, cols]
};

// out[col] = sum of partial[i][col] over i. A block is [lanes, columns] threads: lane by lane down the partials, then a
// tree over the lanes, always in the same order.
template <class W>
__global__ void __launch_bounds__(kColumnThreads)
    norm_backward_columns_kernel(const ColumnSums<W> v, int partials, int64_t cols, int columns) {
  __shared__ float sums[kColumnThreads];  // [lanes, columns]
  const bool first = blockIdx.y == 0;     // an index would put the parameters on the stack
  const float* partial = first ? v.partial[0] : v.partial[1];
  const int tid = threadIdx.x, lanes = kColumnThreads / columns;
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
  if (lane == 0 && col < cols) (first ? v.out[0] : v.out[1])[col] = from_float<W>(sums[tid]);
}

// After a rung has left `partials` rows of each in the workspace.
template <class W>
void sum_partials(const NormBackwardArgs& a, int64_t partials, cudaStream_t stream) {
  ColumnSums<W> sums{};
  unsigned count = 0;
  const auto add = [&](void* out, const float* partial) {
    if (partial == nullptr) return;
    sums.out[count] = static_cast<W*>(out);
    sums.partial[count++] = partial;
  };
  add(a.dw, a.partial_dw);
  add(a.db, a.partial_db);
  if (count == 0) return;
  int lanes = 1;
  while (lanes < 64 && lanes * 8 < partials) lanes *= 2;
  const int columns = kColumnThreads / lanes;
  const dim3 grid(static_cast<unsigned>((a.cols + columns - 1) / columns), count);
  launch<&norm_backward_columns_kernel<W>>({.grid = grid, .block = kColumnThreads, .early = true}, stream, sums,
                                           static_cast<int>(partials), a.cols, columns);
}

}  // namespace warpsmith
