// Matrix product in f32, a thread per 8 x 8 values.
//   Against `block_1d`: eight values of a and eight of b, read from shared memory, make 64 multiplications. A thread's
//   rows and columns lie 16 apart, neighbouring ones belong to neighbouring threads of the block's 16 x 16. 256 threads
//   compute 128 x 128.
//   Bound: global loads of 4 bytes, each waited for; loads from shared memory, one for four multiplications.
#include "gemm/elements.cuh"
#include "gemm/gemm.h"
#include "gemm/thread_tile.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;
constexpr int kOwn = 8, kTile = kSide * kOwn, kDepth = 8;
constexpr int kBrings = kTile * kDepth / kThreads;  // values of a, and of b, that a thread brings

__global__ void __launch_bounds__(kThreads) matmul_block_2d_kernel(const GemmArgs p) {
  __shared__ float sA[kDepth][kTile + 4];  // transposed: [k][row], padded for the stores
  __shared__ float sB[kDepth][kTile + 4];  // [k][col]
  const Elements<float> a(p.a, p.m, p.k), b(p.b, p.k, p.n);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tiles_n = ceil_div(p.n, kTile);
  const int64_t first_row = blockIdx.x / tiles_n * kTile, first_col = blockIdx.x % tiles_n * kTile;
  const bool a_rows = p.a.order == Order::rows, b_rows = p.b.order == Order::rows;
  const int row = thread / kSide, col = thread % kSide;

  // Longer sums continue in the product: registers have no room for a second set of sums.
  for (int64_t first = 0; first < p.k; first += kMostTerms) {
    const int64_t last = min(first + kMostTerms, p.k);
    Sums<float, kOwn, kOwn> sums;
    for (int64_t first_k = first; first_k < last; first_k += kDepth) {
#pragma unroll
      for (int i = 0; i < kBrings; ++i) {  // neighbouring threads bring neighbouring values
        const int at = thread + i * kThreads;
        const int a_row = a_rows ? at / kDepth : at % kTile, a_k = a_rows ? at % kDepth : at / kTile;
        const int b_k = b_rows ? at / kTile : at % kDepth, b_col = b_rows ? at % kTile : at / kDepth;
        sA[a_k][a_row] = a.at<float>(first_row + a_row, first_k + a_k);
        sB[b_k][b_col] = b.at<float>(first_k + b_k, first_col + b_col);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        float left[kOwn], right[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          left[i] = sA[k][row + i * kSide];
          right[i] = sB[k][col + i * kSide];
        }
        sums.add_products(left, right);
      }
      __syncthreads();  // the next slice overwrites this one
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t to_row = first_row + row + i * kSide;
      if (to_row >= p.m) break;
      float* const d = static_cast<float*>(p.d) + to_row * p.n;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int64_t to_col = first_col + col + j * kSide;
        if (to_col < p.n) d[to_col] = first == 0 ? sums.at(i, j) : d[to_col] + sums.at(i, j);
      }
    }
  }
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  const int64_t tiles = ceil_div(p.m, kTile) * ceil_div(p.n, kTile);
  warpsmith::launch<&matmul_block_2d_kernel>({static_cast<unsigned>(tiles), kThreads}, stream, p);
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_plain(p) : "takes f32"; }

const Register<GemmArgs> registered{"block_2d", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
