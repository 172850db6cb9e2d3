// GEMV, a warp per row, 128-bit loads.
//   Against `k128`: a lane reads 16 bytes at once, and four such loads before it needs the first; the weights, which are
//   read once, pass by L1. Bound: the vector is read again for every row, as often as the row itself.
#include "device/warp.h"
#include "gemm/gemv/gemv.h"
#include "gemm/slice_dot.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kRows = kThreads / kWarp;
using Tile = SliceTile<1, 1, 4>;

template <class T>
__global__ void __launch_bounds__(kThreads) gemv_pack_kernel(const GemvArgs a) {
  const int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  if (row >= a.m) return;
  const T* x = static_cast<const T*>(a.x) + int64_t{blockIdx.y} * a.x_row;  // [k]
  const uint4* weights[1] = {reinterpret_cast<const uint4*>(static_cast<const T*>(a.a) + row * a.a_row)};
  const uint4* values[1] = {reinterpret_cast<const uint4*>(x)};
  const int lane = threadIdx.x % kWarp;
  float sum[1][1] = {};
  slice_dot<T, T, Tile, kWarp>(sum, weights, values, lane, static_cast<int>(a.k / kPack<T>));
  const float total = warp_reduce(sum[0][0]);
  if (lane == 0) static_cast<T*>(a.y)[int64_t{blockIdx.y} * a.m + row] = from_float<T>(total);
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const auto blocks = static_cast<unsigned>((a.m + kRows - 1) / kRows);
    warpsmith::launch<&gemv_pack_kernel<T>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

// Below, most lanes have nothing to read.
bool suits(const GemvArgs& a) { return a.k >= 128; }

const Register<GemvArgs> registered{"pack", /*min_sm=*/80, needs_packs_in_f32, launch, suits};

}  // namespace
}  // namespace warpsmith
