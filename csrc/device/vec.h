// Aligned bundles of values, and the loads and stores that move one in a single instruction.
#pragma once

#include <cstdint>

#include "device/ptx/memory.h"

namespace warpsmith {

// n values that one memory instruction moves.
template <class T, int n>
struct alignas(sizeof(T) * n) Vec {
  static_assert(sizeof(T) * n <= 16 && (sizeof(T) * n & (sizeof(T) * n - 1)) == 0,
                "one access moves 1, 2, 4, 8 or 16 bytes");
  T value[n];

  __device__ T& operator[](int i) { return value[i]; }
  __device__ const T& operator[](int i) const { return value[i]; }
};

template <class T>
using Pack = Vec<T, 16 / static_cast<int>(sizeof(T))>;

// Inputs of this many bytes fill the L2 of the GPUs we know.
inline constexpr int64_t kL2Bytes = 64 << 20;

// How an access treats the caches.
enum class Cache {
  normal,
  streaming,  // touched once: not kept in L1, first to leave L2
};

template <Cache cache = Cache::normal, class T, int n>
__device__ __forceinline__ void load(Vec<T, n>& to, const T* from) {
  if constexpr (cache == Cache::streaming && sizeof(to) == 16) {
    *reinterpret_cast<uint4*>(&to) = ptx::load_streaming(reinterpret_cast<const uint4*>(from));
  } else {
    to = *reinterpret_cast<const Vec<T, n>*>(from);
  }
}

// Streaming, with an L2 policy made by ptx::policy_evict_….
template <class T, int n>
__device__ __forceinline__ void load_with_policy(Vec<T, n>& to, const T* from, uint64_t policy) {
  static_assert(sizeof(to) == 16, "policies come with 128-bit accesses");
  *reinterpret_cast<uint4*>(&to) = ptx::load_streaming(reinterpret_cast<const uint4*>(from), policy);
}

template <Cache cache = Cache::normal, class T, int n>
__device__ __forceinline__ void store(T* to, const Vec<T, n>& from) {
  if constexpr (cache == Cache::streaming && sizeof(from) == 16) {
    ptx::store_streaming(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
  } else {
    *reinterpret_cast<Vec<T, n>*>(to) = from;
  }
}

}  // namespace warpsmith
