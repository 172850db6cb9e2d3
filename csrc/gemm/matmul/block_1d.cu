// Matrix product in f32, a thread per eight values of a column.
//   Against `sliced_k`: a value of b, once in a register, is multiplied with eight of a, which arrive four at a time, so
//   three loads from shared memory serve eight multiplications. 512 threads compute 64 x 64.
//   Bound: those loads.
#include "gemm/elements.cuh"
#include "gemm/gemm.h"
#include "gemm/thread_tile.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kTile = 64, kDepth = 8, kRows = 8;
constexpr int kThreads = kTile * kTile / kRows;
static_assert(kThreads == kTile * kDepth, "a thread brings one value of a and one of b");

__global__ void __launch_bounds__(kThreads) matmul_block_1d_kernel(const GemmArgs p) {
  __shared__ alignas(16) float sA[kDepth][kTile + kChunk<float>];  // transposed: [k][row]
  __shared__ float sB[kDepth][kTile + 1];                          // [k][col]
  const Elements<float> a(p.a, p.m, p.k), b(p.b, p.k, p.n);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tiles_n = ceil_div(p.n, kTile);
  const int64_t first_row = blockIdx.x / tiles_n * kTile, first_col = blockIdx.x % tiles_n * kTile;
  // which value of a tile this thread brings: neighbours bring neighbouring values
  const bool a_rows = p.a.order == Order::rows, b_rows = p.b.order == Order::rows;
  const int a_row = a_rows ? thread / kDepth : thread % kTile, a_k = a_rows ? thread % kDepth : thread / kTile;
  const int b_k = b_rows ? thread / kTile : thread % kDepth, b_col = b_rows ? thread % kTile : thread / kDepth;
  // and which it computes
  const int row = thread / kTile * kRows, col = thread % kTile;

  float total[kRows] = {}, sum[kRows] = {};
  for (int64_t first_k = 0; first_k < p.k; first_k += kDepth) {
    sA[a_k][a_row] = a.at<float>(first_row + a_row, first_k + a_k);
    sB[b_k][b_col] = b.at<float>(first_k + b_k, first_col + b_col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float column[kRows];
      load_chunks(column, &sA[k][row], kChunk<float>);
      const float value = sB[k][col];
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i] = fmaf(column[i], value, sum[i]);
    }
    if ((first_k + kDepth) % kMostTerms == 0 || first_k + kDepth >= p.k) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        total[i] += sum[i];
        sum[i] = 0.0f;
      }
    }
    __syncthreads();  // the next slice overwrites this one
  }
  if (first_col + col >= p.n) return;
  float* const d = static_cast<float*>(p.d) + first_col + col;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t at = first_row + row + i;
    if (at < p.m) d[at * p.n] = total[i];
  }
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  const int64_t tiles = ceil_div(p.m, kTile) * ceil_div(p.n, kTile);
  warpsmith::launch<&matmul_block_1d_kernel>({static_cast<unsigned>(tiles), kThreads}, stream, p);
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_plain(p) : "takes f32"; }

const Register<GemmArgs> registered{"block_1d", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
