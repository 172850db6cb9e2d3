// The dot product of a row and a vector by a group of lanes, in f32 or in the arithmetic of f16.
#pragma once

#include "device/add.h"
#include "device/convert.h"
#include "device/vec.h"
#include "device/warp.h"
#include "gemm/gemv/gemv.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {

// A product and its addition round once together.
template <class A, class T>
__device__ __forceinline__ A multiply_add(T a, T b, A sum) {
  if constexpr (std::is_same_v<A, float>) {
    return fmaf(to_float(a), to_float(b), sum);
  } else {
    return __hfma(a, b, sum);
  }
}

// Vectors of values that a lane adds up by themselves: rounding errors grow with the length of a sum.
inline constexpr int kMostVectorsOfSum = 64;

// This lane's share of a[0] x[0] + ... + a[k - 1] x[k - 1] in A: every `lanes`-th vector of `width` values, each of whose
// places has a sum of its own.
template <class A, class T, int lanes, int width>
__device__ __forceinline__ A lane_dot(const T* a, const T* x, int k, int lane) {
  constexpr int kStep = lanes * width;
  a += lane * width;
  x += lane * width;
  A total = from_float<A>(0.0f);
#pragma unroll 1
  for (int left = k - lane * width; left > 0; left -= kMostVectorsOfSum * kStep) {
    A sum[width];
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] = from_float<A>(0.0f);
    const int end = min(left, kMostVectorsOfSum * kStep);
#pragma unroll 4
    for (int i = 0; i < end; i += kStep) {
      Vec<T, width> weights, values;
      load(weights, a);
      load(values, x);
      a += kStep;
      x += kStep;
#pragma unroll
      for (int j = 0; j < width; ++j) sum[j] = multiply_add(weights[j], values[j], sum[j]);
    }
#pragma unroll
    for (int i = 1; i < width; ++i) sum[0] = Add{}(sum[0], sum[i]);
    total = Add{}(total, sum[0]);
  }
  return total;
}

// A group of lanes for each row, `width` values a load; blockIdx.y counts the vectors.
template <class T, class A, int threads, int lanes, int width>
__device__ __forceinline__ void dot_rows(const GemvArgs& a) {
  const int64_t row = int64_t{blockIdx.x} * (threads / lanes) + threadIdx.x / lanes;
  const int64_t readable = row < a.m ? row : a.m - 1;                       // every lane takes part in the shuffles
  const T* weights = static_cast<const T*>(a.a) + readable * a.a_row;       // [k]
  const T* x = static_cast<const T*>(a.x) + int64_t{blockIdx.y} * a.x_row;  // [k]
  const int lane = threadIdx.x % lanes;
  const A sum = warp_reduce<lanes>(lane_dot<A, T, lanes, width>(weights, x, static_cast<int>(a.k), lane), Add{});
  if (lane == 0 && row < a.m) {
    static_cast<T*>(a.y)[int64_t{blockIdx.y} * a.m + row] = from_float<T>(to_float(sum));
  }
}

// Calls body.template operator()<T, A>() for the dtype and the accumulator.
template <class Body>
void dispatch_accumulator(const GemvArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, f16>) {
      if (a.accumulator == Dtype::f16) return body.template operator()<f16, f16>();
    }
    body.template operator()<T, float>();
  });
}

}  // namespace warpsmith
