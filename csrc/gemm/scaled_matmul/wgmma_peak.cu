// Scaled product of fp8 matrices by wgmma, formats mixed, scales of all, rows and columns or blocks.
//   Against `mma_fp8`: the tensor cores of sm_90 multiply fp8 by wgmma alone, at twice the rate of f16. Sums leave them every
//   128 values of k (wgmma_apart.cuh), unless `fast_accum` says that they may stay; tile and slices of k by a model of clocks;
//   for few rows operands change places. Sums of slices go to the workspace, and a second kernel adds them up in order.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: large products shared memory,
//   which a step of exact sums reads and writes for 640 clocks, and multiplies for 512; few rows memory.
//   Sums in two levels: DeepSeek-V3 Technical Report, section 3.3.2: https://arxiv.org/abs/2412.19437
#include "device/start_early.h"
#include "device/vec.h"
#include "gemm/scaled_matmul/result.cuh"
#include "gemm/scaled_matmul/wgmma.h"
#include "gemm/scaled_matmul/wgmma_plan.h"
#include "gemm/wgmma_menu.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

// Adds up sums of slices [slices, m, n], `width` neighbours a thread, and scales them but where they are scaled by blocks.
template <class Out, int width>
__global__ void __launch_bounds__(kThreads)
    scaled_matmul_sum_slices_kernel(const __grid_constant__ ScaledMatmulArgs p, const int slices) {
  start_early();
  const int64_t total = p.m * p.n, first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * width;
  if (first >= total) return;
  const float* from = static_cast<const float*>(p.workspace) + first;
  float sums[width] = {};
#pragma unroll 4
  for (int slice = 0; slice < slices; ++slice) {
    Vec<float, width> part;
    load(part, from + slice * total);
#pragma unroll
    for (int i = 0; i < width; ++i) sums[i] += part[i];
  }
  if (!p.blocks) {
    const int64_t row = first / p.n, col = first % p.n;
    const float of_row = p.scale_a.data[row * p.scale_a.step];
#pragma unroll
    for (int i = 0; i < width; ++i) sums[i] *= of_row * p.scale_b.data[(col + i) * p.scale_b.step];
  }
  Vec<Out, width> out;
  round_result(out, sums, p);
  store(static_cast<Out*>(p.d) + first, out);
}

void sum_slices(const ScaledMatmulArgs& p, int slices, cudaStream_t stream) {
  dispatch_out(p.out, [&]<class Out>() {
    const auto run = [&]<int width>() {
      const LaunchConfig config{.grid = static_cast<unsigned>(ceil_div(ceil_div(p.m * p.n, width), kThreads)),
                                .block = kThreads,
                                .early = true};
      warpsmith::launch<&scaled_matmul_sum_slices_kernel<Out, width>>(config, stream, p, slices);
    };
    const bool wide = p.n % 4 == 0 && reinterpret_cast<uintptr_t>(p.d) % (4 * sizeof(Out)) == 0;
    wide ? run.template operator()<4>() : run.template operator()<1>();
  });
}

const char* takes(const ScaledMatmulArgs& p) { return is_fp8(p.dtype) ? needs_scaled_wgmma(p) : "takes e4m3 and e5m2"; }

void launch(const ScaledMatmulArgs& p, cudaStream_t stream) {
  const WgmmaChoice choice = choose_scaled(p);
  launch_tile_of<kScaledMenu>(choice.tile, [&]<WgmmaTile tile>() { launch_scaled_tile<tile>(p, choice, stream); });
  if (choice.slices > 1) sum_slices(p, choice.slices, stream);
}

const Register<ScaledMatmulArgs> registered{
    "wgmma_peak", /*min_sm=*/90, takes, launch, always_suits<ScaledMatmulArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
