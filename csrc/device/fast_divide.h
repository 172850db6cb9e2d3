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
      const uint32_t small = static_cast<uint32_t>(n);
      return (__umulhi(small, multiplier) + small) >> shift;
    }
    return n / divisor;
  }
#endif
};

}  // namespace warpsmith
