// Matrix product, operands passed through shared memory one slice of k at a time.
//   Against `naive`: 32 x 32 threads bring 32 x 32 values of a and of b, once for all of them, so global memory is read
//   a thirty-second as often. Neighbouring threads bring values that lie side by side, in either order of the operands.
//   Bound: loads from shared memory, more than one for each multiplication.
#include "gemm/elements.cuh"
#include "gemm/gemm.h"
#include "gemm/thread_tile.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kTile = 32;

template <class T, class Acc>
__global__ void __launch_bounds__(kTile* kTile) matmul_sliced_k_kernel(const GemmArgs p) {
  constexpr int kWidth = kChunk<Acc>;
  __shared__ alignas(16) Acc sA[kTile][kTile + kWidth];  // [row][k], padded for turned stores
  __shared__ Acc sB[kTile][kTile + 1];                   // [k][col]
  const Elements<T> a(p.a, p.m, p.k), b(p.b, p.k, p.n);
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  const int64_t tiles_n = ceil_div(p.n, kTile);
  const int64_t first_row = blockIdx.x / tiles_n * kTile, first_col = blockIdx.x % tiles_n * kTile;
  // which value of a tile this thread brings
  const bool a_rows = p.a.order == Order::rows, b_rows = p.b.order == Order::rows;
  const int a_row = a_rows ? y : x, a_k = a_rows ? x : y, b_k = b_rows ? y : x, b_col = b_rows ? x : y;

  const Acc zero = from_float<Acc>(0.0f);
  Acc total = zero, sum = zero;
  for (int64_t first_k = 0; first_k < p.k; first_k += kTile) {
    sA[a_row][a_k] = a.template at<Acc>(first_row + a_row, first_k + a_k);
    sB[b_k][b_col] = b.template at<Acc>(first_k + b_k, first_col + b_col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; k += kWidth) {
      Vec<Acc, kWidth> values;
      load(values, &sA[y][k]);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        if constexpr (sizeof(Acc) == 4) {
          sum = fmaf(values[c], sB[k + c][x], sum);
        } else {
          sum = __hfma(values[c], sB[k + c][x], sum);
        }
      }
    }
    if ((first_k + kTile) % kMostTerms == 0) {
      total = plus(total, sum);
      sum = zero;
    }
    __syncthreads();  // the next slice overwrites this one
  }
  total = plus(total, sum);
  const int64_t row = first_row + y, col = first_col + x;
  if (row < p.m && col < p.n) static_cast<T*>(p.d)[row * p.n + col] = from_float<T>(to_float(total));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  const int64_t tiles = ceil_div(p.m, kTile) * ceil_div(p.n, kTile);
  const LaunchConfig config{static_cast<unsigned>(tiles), kTile * kTile};
  visit_types(p, [&]<class T, class Acc>() { warpsmith::launch<&matmul_sliced_k_kernel<T, Acc>>(config, stream, p); });
}

const Register<GemmArgs> registered{"sliced_k", /*min_sm=*/80, needs_plain, launch};

}  // namespace
}  // namespace warpsmith
