// TF32 product, a warp per 16 x 16 tile through the WMMA interface.
//   Eight values of k at a time go through shared memory, which is where tails become zeros and both orders of storage
//   look alike. wmma rounds nothing by itself: each fragment is rounded to TF32 before it is multiplied. The operands in
//   memory stay as they are. Takes every call.
//   Bound: latency. A warp loads, waits, multiplies once, and waits for the next eight values.
#include <mma.h>

#include "gemm/matmul_tf32/matmul_tf32.h"
#include "gemm/matmul_tf32/wmma.cuh"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 32;

__global__ void __launch_bounds__(kThreads)
    matmul_tf32_wmma_naive_kernel(const Tf32Args p, const int64_t tiles_m, const int64_t tiles_n) {
  __shared__ alignas(32) float sA[kWmmaRows * kWmmaDepth];  // [16, 8]
  __shared__ alignas(32) float sB[kWmmaDepth * kWmmaRows];  // [8, 16]
  __shared__ alignas(32) float sD[kWmmaRows * kWmmaRows];   // [16, 16]
  const int64_t tiles = p.batch * tiles_m * tiles_n;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t tile_n = tile % tiles_n, tile_m = tile / tiles_n % tiles_m;
    const int64_t batch = tile / tiles_n / tiles_m;
    const int64_t first_row = tile_m * kWmmaRows, first_col = tile_n * kWmmaRows;
    const float* a = static_cast<const float*>(p.a.data) + batch * p.a.batch;
    const float* b = static_cast<const float*>(p.b.data) + batch * p.b.batch;
    float* d = static_cast<float*>(p.d) + batch * p.m * p.n;
    const bool a_rows = p.a.order == Order::rows, b_rows = p.b.order == Order::rows;
    const int64_t a_row = a_rows ? p.a.ld : 1, a_col = a_rows ? 1 : p.a.ld;
    const int64_t b_row = b_rows ? p.b.ld : 1, b_col = b_rows ? 1 : p.b.ld;

    WmmaSums total, part;
    wmma::fill_fragment(total, 0.0f);
    wmma::fill_fragment(part, 0.0f);
    for (int64_t k = 0; k < p.k; k += kWmmaDepth) {
      // load
      for (int i = static_cast<int>(threadIdx.x); i < kWmmaRows * kWmmaDepth; i += kThreads) {
        const int64_t row = first_row + i / kWmmaDepth, a_k = k + i % kWmmaDepth;
        const int64_t col = first_col + i % kWmmaRows, b_k = k + i / kWmmaRows;
        sA[i] = row < p.m && a_k < p.k ? a[row * a_row + a_k * a_col] : 0.0f;
        sB[i] = col < p.n && b_k < p.k ? b[b_k * b_row + col * b_col] : 0.0f;
      }
      __syncwarp();

      // multiply
      WmmaA rA;
      WmmaB rB;
      WmmaSums sums;
      wmma::load_matrix_sync(rA, sA, kWmmaDepth);
      wmma::load_matrix_sync(rB, sB, kWmmaRows);
      round_to_tf32(rA);
      round_to_tf32(rB);
      wmma::fill_fragment(sums, 0.0f);
      wmma::mma_sync(sums, rA, rB, sums);
      __syncwarp();

      // add: here rounded to nearest, which in the tensor cores would be cut off
      add(part, sums);
      if ((k / kWmmaDepth + 1) % (kTensorCoreDepth / kWmmaDepth) != 0) continue;
      add(total, part);
      wmma::fill_fragment(part, 0.0f);
    }
    add(total, part);
    write_tile(d, p, first_row, first_col, total, sD);
  }
}

const char* takes(const Tf32Args&) { return nullptr; }

void launch(const Tf32Args& p, cudaStream_t stream) {
  const int64_t tiles_m = ceil_div(p.m, kWmmaRows), tiles_n = ceil_div(p.n, kWmmaRows);
  const unsigned grid = row_grid(p.batch * tiles_m * tiles_n);
  warpsmith::launch<&matmul_tf32_wmma_naive_kernel>({grid, kThreads}, stream, p, tiles_m, tiles_n);
}

const Register<Tf32Args> registered{"wmma_naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
