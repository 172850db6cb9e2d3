// What the rungs that add blocks by half-precision atomics share. The total is held in 16 bits: 11 bits of it count, it
// overflows beyond 65504, and the order of the additions, hence the result, differs from run to run.
#pragma once

#include "device/add.h"
#include "reduce/dot/thread_dot.cuh"

namespace warpsmith {

inline constexpr int kAtomicThreads = 256, kAtomicValues = kDotValuesPerBlock / kAtomicThreads;

inline const char* takes_f16(const DotArgs& a) {
  if (a.dtype != Dtype::f16) return "takes f16";
  return a.accumulator == Dtype::f16 ? nullptr : "accumulates in f16";
}

// out = total.x + total.y
void launch_atomic_out(const __half2* total, f16* out, cudaStream_t stream);

namespace {

// The sum of a block's products in f16; thread 0 gets it.
__device__ __forceinline__ f16 block_dot(const f16* x, const f16* y, int64_t n) {
  __shared__ BlockReduceStorage<f16, kAtomicThreads> shared;
  const int64_t first = int64_t{blockIdx.x} * kDotValuesPerBlock + threadIdx.x;
  f16 sum = from_float<f16>(0.0f);
#pragma unroll
  for (int k = 0; k < kAtomicValues; ++k) {
    const int64_t i = first + k * kAtomicThreads;
    if (i < n) sum = __hfma(x[i], y[i], sum);
  }
  return block_reduce<kAtomicThreads>(sum, shared, Add{});
}

// Clears the total, a pair of which some rungs use one half; runs `add`; writes the result.
template <class AddBlocks>
void launch_atomic(const DotArgs& a, cudaStream_t stream, AddBlocks&& add) {
  auto* total = static_cast<__half2*>(a.workspace);
  check_cuda(cudaMemsetAsync(total, 0, sizeof(__half2), stream), "cudaMemsetAsync");
  add(total);
  launch_atomic_out(total, static_cast<f16*>(a.out), stream);
}

}  // namespace
}  // namespace warpsmith
