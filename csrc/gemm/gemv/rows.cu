// GEMV, four rows per warp.
//   Against `pack`: what a lane has read of the vector serves four rows, and the eight loads under way belong to all of
//   them. Bound: few rows leave multiprocessors without a warp; a long row is the work of one.
#include "device/warp.h"
#include "gemm/gemv/gemv.h"
#include "gemm/slice_dot.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;
using Tile = SliceTile<4, 1, 2>;
constexpr int kRows = kThreads / kWarp * Tile::rows;

template <class T>
__global__ void __launch_bounds__(kThreads, 6) gemv_rows_kernel(const GemvArgs a) {
  const int64_t first = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp * Tile::rows;
  const T* x = static_cast<const T*>(a.x) + int64_t{blockIdx.y} * a.x_row;  // [k]
  const uint4* weights[Tile::rows];
#pragma unroll
  for (int i = 0; i < Tile::rows; ++i) {
    const int64_t row = first + i < a.m ? first + i : a.m - 1;
    weights[i] = reinterpret_cast<const uint4*>(static_cast<const T*>(a.a) + row * a.a_row);
  }
  const uint4* values[1] = {reinterpret_cast<const uint4*>(x)};
  const int lane = threadIdx.x % kWarp;
  float sum[Tile::rows][1] = {};
  slice_dot<T, T, Tile, kWarp>(sum, weights, values, lane, static_cast<int>(a.k / kPack<T>));
#pragma unroll
  for (int i = 0; i < Tile::rows; ++i) {
    const float total = warp_reduce(sum[i][0]);
    if (lane == i && first + i < a.m) {
      static_cast<T*>(a.y)[int64_t{blockIdx.y} * a.m + first + i] = from_float<T>(total);
    }
  }
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const auto blocks = static_cast<unsigned>((a.m + kRows - 1) / kRows);
    warpsmith::launch<&gemv_rows_kernel<T>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

bool suits(const GemvArgs& a) { return a.k >= 256; }

const Register<GemvArgs> registered{"rows", /*min_sm=*/80, needs_packs_in_f32, launch, suits};

}  // namespace
}  // namespace warpsmith
