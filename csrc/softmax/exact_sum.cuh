// The sum of values between 0 and 1 that does not depend on their order, nor on who adds them: the same bits wherever a row
// lies, and however many threads share it.
//
// A sum that begins at 4 and stays below 8 has a fixed last place, 2^-21. Rounded towards zero, adding a value adds the
// value's multiples of that and drops the rest, whatever was added before. The rest is known exactly, as the value less
// what the sum grew by, and is added in the same manner to a second sum, whose last place is 2^-42. What the two have grown
// by are whole numbers of their last places, read off their bits, and from there on all additions are those of integers.
//   Four additions a value instead of one. Each value loses less than 2^-42 at the end: of a row that fits this, 2^17
// values at most, less than 2^-25 in all, where the largest value is 1 and half a last place of a float 2^-24.
// Demmel & Nguyen 2013, "Fast Reproducible Floating-Point Summation", https://doi.org/10.1109/ARITH.2013.9
#pragma once

#include <bit>
#include <cstdint>

#include "device/warp.h"

namespace warpsmith {

// Values that pass through one pair of sums.
inline constexpr int kExactGroup = 4;

namespace detail {

// Where the sums begin: the first holds kExactGroup values of 1, the second as many rests.
inline constexpr int kExactPlaces = 21;  // binary, of each
inline constexpr float kExactHigh = kExactGroup, kExactLow = kExactGroup * (1.0f / (1 << kExactPlaces));
static_assert(kExactGroup << kExactPlaces == 1 << 23, "from one power of two to the next");
inline constexpr float kExactUnit = 1.0f / (int64_t{1} << 2 * kExactPlaces);

inline constexpr uint32_t kExactNan = 0xffffffffu;
// Of a float's bits: set in NaN, and not from 4 to 8.
inline constexpr uint32_t kNanBit = 0x20000000u;

}  // namespace detail

// Of a warp: units of 2^-21 and of 2^-42, or kExactNan as the latter.
struct ExactPart {
  uint32_t high, low;
};

// What a thread adds up, in so many groups.
template <int groups>
class ExactSum {
 public:
  // A value may exceed 1 by rounding, and may be NaN.
  __device__ __forceinline__ void add(const float (&values)[kExactGroup]) {
    float high = detail::kExactHigh, low = detail::kExactLow;
#pragma unroll
    for (int i = 0; i < kExactGroup; ++i) {
      // Intrinsics, which are not fused with the product that a value may be.
      const float next = __fadd_rz(high, values[i]), rest = __fsub_rn(values[i], __fsub_rn(next, high));
      low = __fadd_rz(low, rest);
      high = next;
    }
    high_ += __float_as_uint(high);
    low_ += __float_as_uint(low);
    seen_ |= __float_as_uint(high);
  }

  // Once every group is in, by whole warps.
  __device__ __forceinline__ ExactPart of_warp() const {
    static_assert(int64_t{kWarp} * groups << 23 < detail::kExactNan, "sums of 32 bits");
    const uint32_t high = __reduce_add_sync(kAllLanes, high_), low = __reduce_add_sync(kAllLanes, low_);
    const bool nan = __any_sync(kAllLanes, (seen_ & detail::kNanBit) != 0) != 0;
    return {high, nan ? detail::kExactNan : low};
  }

 private:
  // All groups begin at the same bits.
  uint32_t high_ = 0u - groups * std::bit_cast<uint32_t>(detail::kExactHigh);
  uint32_t low_ = 0u - groups * std::bit_cast<uint32_t>(detail::kExactLow);
  uint32_t seen_ = 0;
};

// Of the parts of all warps, at most `most` of them; by whole warps, every lane gets the sum.
template <int groups, int most>
__device__ __forceinline__ float exact_total(const ExactPart* parts, int count) {
  constexpr int kEach = (most + kWarp - 1) / kWarp, kHalf = 27;  // bits: 32 lanes of so many have a sum of 32 bits
  static_assert(kEach * groups < 32,
                "less than 2^54 units a lane: kEach parts of groups * 2^5 * 2^23 * 2^21 and a bit");
  const int lane = threadIdx.x % kWarp;
  uint64_t own = 0;
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kWarp + lane;
    if (at >= count) continue;
    const ExactPart part = parts[at];
    own += (uint64_t{part.high} << detail::kExactPlaces) + part.low;
    nan = nan || part.low == detail::kExactNan;
  }
  const uint32_t upper = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(own >> kHalf));
  const uint32_t lower = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(own) & ((1u << kHalf) - 1));
  nan = __any_sync(kAllLanes, nan) != 0;
  const float sum = static_cast<float>((uint64_t{upper} << kHalf) + lower) * detail::kExactUnit;
  return nan ? __uint_as_float(0x7fffffffu) : sum;
}

}  // namespace warpsmith
