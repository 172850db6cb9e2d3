// What the sums of threads and blocks are joined in, and how the last of them becomes the result.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/block.h"
#include "host/dtype.h"
#include "host/launch.h"

namespace warpsmith {

// A thread adds up a handful of values in 32 bits. From there on sums are few, and double costs nothing beside the
// loads: the error stays that of the handful, and integers wrap where PyTorch's int64 does. Where nothing but their
// latency is left, in short calls of `one_pass`, a warp of such threads is added up in 32 bits too.
template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

// The dtype of the result: that of the input; f32 for fp8, int64 for integers.
template <class T>
using Result = std::conditional_t<std::is_integral_v<T>, int64_t, std::conditional_t<sizeof(T) == 1, float, T>>;

// Rounded once.
template <class To, class From>
__device__ __forceinline__ To rounded(From total) {
  if constexpr (std::is_same_v<To, f16>) {
    return __double2half(total);
  } else if constexpr (std::is_same_v<To, bf16>) {
    return __double2bfloat16(total);
  } else {
    return static_cast<To>(total);
  }
}

// This thread's share of `count` sums, in a fixed order; kBatch loads are in flight together.
template <int threads, class Sum>
__device__ __forceinline__ Sum add_partials(const Sum* partial, int64_t count) {
  constexpr int kBatch = 8;
  Sum total{};
  for (int64_t start = threadIdx.x; start < count; start += kBatch * threads) {
    Sum batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      batch[i] = start + i * threads < count ? __ldcg(partial + start + i * threads) : Sum{};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) total += batch[i];
  }
  return total;
}

// The second launch: one block adds up what the blocks of the first one left. `early`: it takes its place while they end.
// See launch_total.cuh.
template <class To, int threads = 1024, class Sum>
void launch_total(const Sum* partial, int64_t count, void* y, cudaStream_t stream, bool early = false);

}  // namespace warpsmith
