// The running sum of a thread, a vector at a time, in the accumulator that the variant names.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/add.h"
#include "device/convert.h"
#include "reduce/total.cuh"

namespace warpsmith {

// What a thread adds values in unless a variant asks for less: f32 for floating dtypes; int32 for i8, which a thread
// has too few of to overflow; int64 for i32.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, int8_t>, int32_t,
                                std::conditional_t<std::is_same_v<T, int32_t>, int64_t, float>>;

template <class A>
using Pair = std::conditional_t<std::is_same_v<A, f16>, __half2, __nv_bfloat162>;

// Two neighbours as a pair of the accumulator's type; exact.
template <class A, class T>
__device__ __forceinline__ Pair<A> as_pair(const T& first) {
  if constexpr (std::is_same_v<A, T>) {
    return reinterpret_cast<const Pair<A>&>(first);
  } else {
    static_assert(kIsFp8<T> && std::is_same_v<A, f16>, "16-bit values accumulate in their own type, fp8 in f16");
    const uint16_t pair = reinterpret_cast<const uint16_t&>(first);
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
    uint32_t halves;
    if constexpr (std::is_same_v<T, e4m3>) {
      halves = ptx::half2_from_e4m3x2(pair);
    } else {
      halves = ptx::half2_from_e5m2x2(pair);
    }
    return reinterpret_cast<const __half2&>(halves);
#else
    const float2 values = decode_fp8x2<T>(pair);
    return __floats2half2_rn(values.x, values.y);
#endif
  }
}

template <class A, class T>
__device__ __forceinline__ A as_accumulator(T x) {
  if constexpr (std::is_integral_v<T> || std::is_same_v<A, T>) {
    return static_cast<A>(x);
  } else {
    return from_float<A>(to_float(x));
  }
}

// Several lanes at once: additions of one lane wait for each other, those of different lanes do not, and each lane
// rounds less often.
template <class T, class A, int width>
class ThreadSum {
  static constexpr bool kPaired = sizeof(A) == 2 && width % 2 == 0;
  static constexpr bool kQuads = std::is_same_v<T, int8_t> && width % 4 == 0;
  static constexpr int kTerms = kPaired ? width / 2 : kQuads ? width / 4 : width;  // of one vector
  static constexpr int kLanes = kTerms < 8 ? kTerms : 8;
  using Lane = std::conditional_t<kPaired, Pair<A>, A>;
  using Joined = std::conditional_t<std::is_integral_v<T>, int64_t, float>;

  Lane lane_[kLanes]{};

  static __device__ __forceinline__ Joined joined(const Lane& lane) {
    if constexpr (std::is_integral_v<T>) {
      return lane;
    } else if constexpr (kPaired) {
      return to_float(lane.x) + to_float(lane.y);
    } else {
      return to_float(lane);
    }
  }

 public:
  __device__ __forceinline__ void add(const Vec<T, width>& x) {
    if constexpr (std::is_same_v<A, float>) {
      float values[width];
      to_float(values, x);
#pragma unroll
      for (int i = 0; i < width; ++i) lane_[i % kLanes] += values[i];
    } else if constexpr (kPaired) {
#pragma unroll
      for (int i = 0; i < kTerms; ++i) lane_[i % kLanes] = Add{}(lane_[i % kLanes], as_pair<A>(x[2 * i]));
    } else if constexpr (kQuads) {
      constexpr int kOnes = 0x01010101;  // the dot product with it adds up four bytes
#pragma unroll
      for (int i = 0; i < kTerms; ++i) {
        lane_[i % kLanes] = __dp4a(reinterpret_cast<const int&>(x[4 * i]), kOnes, lane_[i % kLanes]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) lane_[i % kLanes] = Add{}(lane_[i % kLanes], as_accumulator<A>(x[i]));
    }
  }

  __device__ __forceinline__ Total<T> total() const {
    Joined sum[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sum[i] = joined(lane_[i]);
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
  }
};

// A value by itself, as a sum.
template <class T>
__device__ __forceinline__ Total<T> as_total(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x;
  } else {
    return to_float(x);
  }
}

}  // namespace warpsmith
