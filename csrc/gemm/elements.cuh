// An operand of a product, element by element, in either order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/convert.h"
#include "gemm/gemm.h"

namespace warpsmith {

// PyTorch compiles its extensions without the operators of f16. (Not Add of device/add.h: the epilogue brings another.)
__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ f16 plus(f16 a, f16 b) { return __hadd(a, b); }

// In f32, exactly. Takes int8 too.
template <class T>
__device__ __forceinline__ float value_of(T x) {
  if constexpr (std::is_same_v<T, int8_t>) {
    return static_cast<float>(x);
  } else {
    return to_float(x);
  }
}

template <class T>
struct Elements {
  const T* data;
  int64_t row_step, col_step;
  int64_t rows, cols;

  __device__ Elements(const Matrix& x, int64_t rows, int64_t cols)
      : data(static_cast<const T*>(x.data)),
        row_step(x.order == Order::rows ? x.ld : 1),
        col_step(x.order == Order::rows ? 1 : x.ld),
        rows(rows),
        cols(cols) {}

  // Zero outside of the matrix, so that a tile's tail adds nothing.
  template <class To>
  __device__ To at(int64_t row, int64_t col) const {
    if (row >= rows || col >= cols) return from_float<To>(0.0f);
    const T value = data[row * row_step + col * col_step];
    if constexpr (std::is_same_v<T, To>) {
      return value;
    } else {
      return to_float(value);
    }
  }
};

}  // namespace warpsmith
