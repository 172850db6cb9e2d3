// Queries, keys and values taken apart, 128-bit accesses.
//   Against `naive`: a thread moves 16 bytes. Bound: DRAM.
#include "device/convert.h"
#include "device/vec.h"
#include "host/launch.h"
#include "host/registry.h"
#include "transform/unpack_qkv/unpack_qkv.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    unpack_qkv_pack_kernel(const __grid_constant__ UnpackQkvArgs a, const __grid_constant__ QkvGrid grid) {
  constexpr int kWidth = kPack<T>;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= grid.threads) return;
  const QkvPlace at = qkv_place(a, grid, i);
  Vec<T, kWidth> values;
  load<Cache::streaming>(values, static_cast<const T*>(a.packed) + i * kWidth);
  if (a.bias != nullptr) {
    Vec<T, kWidth> bias;
    load(bias, static_cast<const T*>(a.bias) + at.column * kWidth);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) values[k] = from_float<T>(to_float(values[k]) + to_float(bias[k]));
  }
  store(static_cast<T*>(at.of) + at.group * kWidth, values);
}

const char* takes(const UnpackQkvArgs& a) { return needs_head_packs(a); }

void launch(const UnpackQkvArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const QkvGrid grid(a, kPack<T>);
    const auto blocks = static_cast<unsigned>(ceil_div(grid.threads, kThreads));
    warpsmith::launch<&unpack_qkv_pack_kernel<T>>({blocks, kThreads}, stream, a, grid);
  });
}

const Register<UnpackQkvArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
