// Element types, as the kernels and the bindings name them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace warpsmith {

enum class Dtype : int { f32, f16, bf16, e4m3, e5m2, i8, i32 };

using f16 = __half;
using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;
using e5m2 = __nv_fp8_e5m2;

constexpr int size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::f16:
    case Dtype::bf16:
      return 2;
    default:
      return 1;
  }
}

constexpr const char* name_of(Dtype dtype) {
  constexpr const char* names[] = {"f32", "f16", "bf16", "e4m3", "e5m2", "i8", "i32"};
  return names[static_cast<int>(dtype)];
}

constexpr bool is_fp8(Dtype dtype) { return dtype == Dtype::e4m3 || dtype == Dtype::e5m2; }

// Values of this type in one 128-bit access.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

// Throws that there is none.
[[noreturn]] void no_kernel_for(Dtype dtype);

// Calls body.template operator()<T>() for the C++ type of a 16- or 32-bit floating dtype.
template <class Body>
void dispatch_float(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::f32:
      return body.template operator()<float>();
    case Dtype::f16:
      return body.template operator()<f16>();
    case Dtype::bf16:
      return body.template operator()<bf16>();
    default:
      no_kernel_for(dtype);
  }
}

template <class Body>
void dispatch_fp8(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::e4m3:
      return body.template operator()<e4m3>();
    case Dtype::e5m2:
      return body.template operator()<e5m2>();
    default:
      no_kernel_for(dtype);
  }
}

// The floating dtypes, fp8 included.
template <class Body>
void dispatch_floating(Dtype dtype, Body&& body) {
  if (is_fp8(dtype)) return dispatch_fp8(dtype, body);
  dispatch_float(dtype, body);
}

}  // namespace warpsmith
