// Division by a number known at launch: a multiplication and a shift instead of some twenty instructions.
// Granlund & Montgomery 1994, "Division by Invariant Integers using Multiplication".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpsmith {

// Exact for every n < 2^31 and 1 <= divisor < 2^31; larger operands take the slow, exact path.
struct FastDivide {
  uint64_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  FastDivide() = default;

  __host__ explicit FastDivide(uint64_t d) : divisor(d) {
    if (!fast()) return;
    while (shift < 31 && (uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }

  __host__ __device__ bool fast() const { return divisor < (uint64_t{1} << 31); }

#ifdef __CUDACC__
  __device__ __forceinline__ uint64_t quotient(uint64_t n) const {
    if (n < (uint64_t{1} << 31) && fast()) {
      return small_quotient(static_cast<uint32_t>(n));
    }
    return n / divisor;
  }

  // Of n and a divisor that are known to be smaller than 2^31.
  __device__ __forceinline__ uint32_t small_quotient(uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }

  // In the type of n; 32 bits are for small_quotient().
  template <class Int>
  __device__ __forceinline__ Int quotient_as(Int n) const {
    if constexpr (sizeof(Int) == 4) {
      return static_cast<Int>(small_quotient(static_cast<uint32_t>(n)));
    } else {
      return static_cast<Int>(quotient(static_cast<uint64_t>(n)));
    }
  }
#endif
};

}  // namespace warpsmith
