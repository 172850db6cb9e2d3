// GEMV with 8-bit weights, a warp per row, 128-bit loads.
//   Against `naive`: neighbouring lanes read neighbouring packs of sixteen weights, two of them under way, and shuffles
//   add up what they hold. Bound: the vector, two or four times as wide as the weights, is read again for every row.
#include "device/warp.h"
#include "gemm/gemv_scaled/gemv_scaled.h"
#include "gemm/slice_dot.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kRows = kThreads / kWarp;
using Tile = SliceTile<1, 1, 2>;

template <class W, class X>
__global__ void __launch_bounds__(kThreads) gemv_scaled_pack_kernel(const SkinnyArgs a) {
  const int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  if (row >= a.m) return;
  const X* x = static_cast<const X*>(a.x) + int64_t{blockIdx.y} * a.x_row;  // [k]
  const uint4* weights[1] = {reinterpret_cast<const uint4*>(static_cast<const W*>(a.a) + row * a.a_row)};
  const uint4* values[1] = {reinterpret_cast<const uint4*>(x)};
  const int lane = threadIdx.x % kWarp;
  float sum[1][1] = {};
  slice_dot<W, X, Tile, kWarp>(sum, weights, values, lane, static_cast<int>(a.k / kPack<W>));
  const float total = warp_reduce(sum[0][0]) * a.scale[row * a.scale_step];
  if (lane == 0) static_cast<X*>(a.y)[int64_t{blockIdx.y} * a.y_row + row] = from_float<X>(total);
}

void launch(const GemvScaledArgs& a, cudaStream_t stream) {
  dispatch_scaled(a, [&]<class W, class X>() {
    const auto blocks = static_cast<unsigned>((a.call.m + kRows - 1) / kRows);
    warpsmith::launch<&gemv_scaled_pack_kernel<W, X>>({{blocks, static_cast<unsigned>(a.call.vectors)}, kThreads},
                                                      stream, a.call);
  });
}

const Register<GemvScaledArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
