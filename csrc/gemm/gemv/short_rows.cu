// GEMV of short rows: as many lanes for each as it has packs of 16 bytes.
//   Against `rows`: no lane is idle beside a short row, and all that a lane has under way, eight packs of as many rows (of
//   fewer where a row is longer than a warp), is asked for before the first is needed. The weights are read once for all
//   vectors; results leave a warp in whole lines, through shared memory. Blocks take their places while the kernel before
//   ends.
//   Occupancy: four blocks of 256 threads x 64 registers.
//   Bound: DRAM; with more than a few vectors the multiply-adds.
#include <bit>

#include "device/start_early.h"
#include "device/warp.h"
#include "gemm/gemv/gemv.h"
#include "gemm/packs.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kHeldPacks = 8;  // of each lane

// 2^lane_bits lanes share a row: `packs` packs each, as many apart as they are.
template <class T, int packs>
__global__ void __launch_bounds__(kThreads, 4) gemv_short_rows_kernel(const GemvArgs a, const int lane_bits) {
  constexpr int kHeld = kHeldPacks / packs;         // rows of a lane
  __shared__ float results[kWarps][kHeld * kWarp];  // [warps, rows]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int lanes = 1 << lane_bits, groups = kWarp >> lane_bits;
  const int at = lane & (lanes - 1), group = lane >> lane_bits;
  const int rows = kHeld * groups;  // of the warp
  const int64_t first = (int64_t{blockIdx.x} * kWarps + warp) * rows;
  const int end = static_cast<int>(a.k / kPack<T>);
  const auto is_there = [&](int p) { return at + p * lanes < end; };

  start_early();

  // load
  uint4 weights[kHeld][packs];  // of rows that lie `groups` apart
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t row = first + i * groups + group;
    const T* from = static_cast<const T*>(a.a) + (row < a.m ? row : a.m - 1) * a.a_row;  // [k]
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      weights[i][p] = {};
      if (is_there(p)) weights[i][p] = ptx::load_streaming(reinterpret_cast<const uint4*>(from) + at + p * lanes);
    }
  }

#pragma unroll 1
  for (int v = 0; v < a.vectors; ++v) {
    // multiply and add
    const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + v * a.x_row);  // [k]
    float sum[kHeld] = {};
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      float values[kPack<T>];
      unpack<T>(values, is_there(p) ? __ldg(x + at + p * lanes) : uint4{});
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        keep_packed(weights[i][p], static_cast<uint32_t>(v) / kMostVectors);  // 0
        float row[kPack<T>];
        unpack<T>(row, weights[i][p]);
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) sum[i] = fmaf(row[j], values[j], sum[i]);
      }
    }

    // add up the lanes
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) sum[i] += __shfl_xor_sync(kAllLanes, sum[i], distance);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (at == 0) results[warp][i * groups + group] = sum[i];
    }
    __syncwarp();

    // write
    T* y = static_cast<T*>(a.y) + v * a.m + first;  // [rows]
    for (int i = lane; i < rows && first + i < a.m; i += kWarp) y[i] = from_float<T>(results[warp][i]);
    __syncwarp();  // the next vector overwrites the results
  }
}

template <class T>
void launch_short_rows(const GemvArgs& a, cudaStream_t stream) {
  const auto row_packs = static_cast<unsigned>(a.k / kPack<T>);
  const int lane_bits = std::min(static_cast<int>(std::bit_width(row_packs - 1)), 5);
  const auto launch_packs = [&]<int packs>() {
    const int64_t rows = int64_t{kHeldPacks / packs} * (kThreads >> lane_bits);
    const auto blocks = static_cast<unsigned>(ceil_div(a.m, rows));
    warpsmith::launch<&gemv_short_rows_kernel<T, packs>>({.grid = blocks, .block = kThreads, .early = true}, stream, a,
                                                         lane_bits);
  };
  if (row_packs <= kWarp) return launch_packs.template operator()<1>();
  if (row_packs <= 2 * kWarp) return launch_packs.template operator()<2>();
  launch_packs.template operator()<4>();
}

const char* takes(const GemvArgs& a) {
  constexpr int64_t kMostBytes = 4 * kWarp * 16;
  if (const char* reason = needs_packs_in_f32(a)) return reason;
  return a.k * size_of(a.dtype) <= kMostBytes ? nullptr : "needs rows of at most 2 KiB";
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() { launch_short_rows<T>(a, stream); });
}

const Register<GemvArgs> registered{"short_rows", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
