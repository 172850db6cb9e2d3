// Values of 8 bits, of which there are few enough for a counter of a byte in each thread: it counts without atomics, which
// take a GPU twice as long as a load and a store do. A counter that comes round adds to the block's word for the value.
#pragma once

#include "device/warp.h"
#include "vision/histogram/bins.cuh"

namespace warpsmith {

inline constexpr int kByteValues = 256;
// The counters of four warps' lanes for one value: a lane has its bank, a warp its byte.
inline constexpr int kSharing = 4, kCounterRow = kWarp * kSharing;
inline constexpr int kCounterGroups = kHistogramThreads / kCounterRow;
inline constexpr int kCounterPacks = kCounterGroups * kByteValues * kCounterRow / 16;
inline constexpr int kByteSharedBytes = kCounterPacks * 16 + kByteValues * 4;
static_assert(kByteValues == kHistogramThreads, "a thread adds up the counters of one value");

struct CountBytes {
  uint8_t* own;
  uint32_t* rounds;

  __device__ __forceinline__ void operator()(int8_t value) const {
    const auto key = static_cast<uint8_t>(value);
    uint8_t* counter = own + key * kCounterRow;
    const uint32_t count = *counter + 1u;
    *counter = static_cast<uint8_t>(count);
    if (count == 256) atomicAdd(rounds + key, 1u);
  }
};

__device__ __forceinline__ uint32_t sum_of_bytes(uint32_t sum, uint32_t word) {
  constexpr uint32_t kPairs = 0x00ff00ff;
  const uint32_t pairs = (word & kPairs) + (word >> 8 & kPairs);
  return sum + (pairs & 0xffff) + (pairs >> 16);
}

// `shared`: kByteSharedBytes of it.
__device__ __forceinline__ void count_bytes(const HistogramArgs& a, uint4* shared) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  auto* rounds = reinterpret_cast<uint32_t*>(shared + kCounterPacks);
  for (int i = tid; i < kCounterPacks; i += kHistogramThreads) shared[i] = make_uint4(0, 0, 0, 0);
  rounds[tid] = 0;
  __syncthreads();

  // count
  uint8_t* own = reinterpret_cast<uint8_t*>(shared) + warp / kSharing * kByteValues * kCounterRow + lane * kSharing +
                 warp % kSharing;
  walk_values<4>(static_cast<const int8_t*>(a.x), a.n, CountBytes{own, rounds});
  __syncthreads();

  // add up, every lane from another pack of its row on
  if (tid >= a.bins || (tid >= kByteValues / 2 && !a.is_unsigned)) return;
  constexpr int kRowPacks = kCounterRow / 16;
  uint32_t sum = rounds[tid] << 8;
#pragma unroll
  for (int group = 0; group < kCounterGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kRowPacks; ++i) {
      const uint4 pack = shared[(group * kByteValues + tid) * kRowPacks + (i + tid) % kRowPacks];
      sum = sum_of_bytes(sum_of_bytes(sum_of_bytes(sum_of_bytes(sum, pack.x), pack.y), pack.z), pack.w);
    }
  }
  if (sum > 0) add_count(a.counts, static_cast<uint32_t>(tid), sum);
}

}  // namespace warpsmith
