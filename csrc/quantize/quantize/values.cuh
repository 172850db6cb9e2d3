// What is quantised: n neighbouring values of a row at a time, in f32.
//
// Of an RMS norm, weigh() gives x weight, and the reciprocal root of the row's mean square is multiplied afterwards. As
// rounding keeps order, the largest magnitude may be found before that: one sweep has the sum and the maximum.
#pragma once

#include "device/activations.h"
#include "quantize/quantize/codes.cuh"

namespace warpsmith {

template <class T>
struct PlainValues {
  using Value = T;
  static constexpr bool kNorm = false;

  template <int n>
  __device__ static void read(float (&y)[n], const QuantizeArgs& a, int64_t row, int64_t col) {
    Vec<T, n> x;
    load(x, static_cast<const T*>(a.x) + row * a.x_stride + col);
    to_float(y, x);
  }
  template <int n>
  __device__ static void weigh(float (&)[n], const QuantizeArgs&, int64_t) {}
};

template <class T>
struct SiluValues {
  using Value = T;
  static constexpr bool kNorm = false, kExact = std::is_same_v<T, float>;

  template <int n>
  __device__ static void read(float (&y)[n], const QuantizeArgs& a, int64_t row, int64_t col) {
    Vec<T, n> gate, up;
    load(gate, static_cast<const T*>(a.x) + row * a.x_stride + col);
    load(up, static_cast<const T*>(a.up) + row * a.up_stride + col);
    float factors[n];
    to_float(y, gate);
    to_float(factors, up);
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = Silu::forward<kExact>(y[i], 0.0f) * factors[i];
  }
  template <int n>
  __device__ static void weigh(float (&)[n], const QuantizeArgs&, int64_t) {}
};

template <class T>
struct RmsValues : PlainValues<T> {
  static constexpr bool kNorm = true;

  template <class W, int n>
  __device__ static void multiply(float (&y)[n], const QuantizeArgs& a, int64_t col) {
    constexpr int kOnce = n < kPack<W> ? n : kPack<W>;
#pragma unroll
    for (int i = 0; i < n; i += kOnce) {
      Vec<W, kOnce> w;
      load(w, static_cast<const W*>(a.weight) + col + i);
#pragma unroll
      for (int j = 0; j < kOnce; ++j) y[i + j] *= to_float(w[j]) + a.weight_offset;
    }
  }
  template <int n>
  __device__ static void weigh(float (&y)[n], const QuantizeArgs& a, int64_t col) {
    if (a.weight == nullptr) return;
    if (a.weight_dtype == Dtype::f32) {
      multiply<float>(y, a, col);
    } else if constexpr (!std::is_same_v<T, float>) {
      multiply<T>(y, a, col);
    }
  }
  __device__ static float root(float squares, const QuantizeArgs& a) {
    return 1.0f / sqrtf(squares / static_cast<float>(a.cols) + a.eps);
  }
};

// Calls body.template operator()<Source>() for the values of the call.
template <class Body>
void dispatch_values(const QuantizeArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.values == Values::rms_norm) {
      body.template operator()<RmsValues<T>>();
    } else if (a.values == Values::silu_and_mul) {
      body.template operator()<SiluValues<T>>();
    } else {
      body.template operator()<PlainValues<T>>();
    }
  });
}

}  // namespace warpsmith
