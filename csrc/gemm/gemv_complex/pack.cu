// Complex GEMV, two rows per warp, 128-bit loads.
//   Against `naive`: a lane reads two (f32) or four pairs at once, four such packs of weights before it needs the first,
//   and what it has read of the vector serves both rows. Bound: DRAM, for rows that are many or long.
#include "device/convert.h"
#include "device/ptx/memory.h"
#include "device/vec.h"
#include "device/warp.h"
#include "gemm/gemv_complex/gemv_complex.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/packed.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kRows = 2, kPacks = 2, kBlockRows = kThreads / kWarp * kRows;

template <class T>
__global__ void __launch_bounds__(kThreads, 3) gemv_complex_pack_kernel(const GemvComplexArgs a) {
  const int lane = threadIdx.x % kWarp;
  const int64_t first_row = int64_t{blockIdx.x} * kBlockRows + threadIdx.x / kWarp * kRows;
  const uint4* weights[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = first_row + i < a.m ? first_row + i : a.m - 1;
    weights[i] = reinterpret_cast<const uint4*>(static_cast<const T*>(a.a) + row * a.a_row);
  }
  const auto* x = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + int64_t{blockIdx.y} * a.k * 2);
  const int64_t packs = 2 * a.k / kPack<T>;

  float real[kRows] = {}, imaginary[kRows] = {};
  for (int64_t at = lane; at < packs; at += kPacks * kWarp) {
    // load
    uint4 held[kPacks][kRows], values[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const bool there = at + p * kWarp < packs;
      values[p] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        held[p][i] = {};
        if (there) held[p][i] = ptx::load_streaming(weights[i] + at + p * kWarp);
      }
      if (there) values[p] = __ldg(x + at + p * kWarp);
    }

    // multiply and add: these products by themselves, as rounding errors grow with the length of a sum
    float real_part[kRows] = {}, imaginary_part[kRows] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float b[kPack<T>];
      unpack<T>(b, values[p]);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        float w[kPack<T>];
        unpack<T>(w, held[p][row]);
#pragma unroll
        for (int i = 0; i < kPack<T>; i += 2) {
          real_part[row] = fmaf(w[i], b[i], fmaf(-w[i + 1], b[i + 1], real_part[row]));
          imaginary_part[row] = fmaf(w[i], b[i + 1], fmaf(w[i + 1], b[i], imaginary_part[row]));
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      real[row] += real_part[row];
      imaginary[row] += imaginary_part[row];
    }
  }

  // lanes
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sums[2] = {warp_reduce(real[i]), warp_reduce(imaginary[i])};
    if (lane != 0 || first_row + i >= a.m) continue;
    Vec<T, 2> out;
    from_float(out, sums);
    store(static_cast<T*>(a.y) + (int64_t{blockIdx.y} * a.m + first_row + i) * 2, out);
  }
}

void launch(const GemvComplexArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const auto blocks = static_cast<unsigned>((a.m + kBlockRows - 1) / kBlockRows);
    warpsmith::launch<&gemv_complex_pack_kernel<T>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

const Register<GemvComplexArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
