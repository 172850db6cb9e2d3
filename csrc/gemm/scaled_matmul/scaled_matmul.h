// Products of 8-bit matrices with scales: d[i, j] = scale_a[i] scale_b[j] (a[i, 0] b[0, j] + ...).
#pragma once

#include <cstdint>

#include "gemm/gemm.h"

namespace warpsmith {

struct ScaledMatmulArgs {
  Matrix a, b;           // [m, k], [k, n]; no batch
  const float* scale_a;  // [m], or one value
  const float* scale_b;  // [n], or one value
  int64_t scale_a_step;  // 0 where there is one value
  int64_t scale_b_step;
  void* d;          // [m, n], contiguous
  int64_t m, n, k;  // each at least 1
  Dtype dtype;      // of a and b: e4m3, e5m2 or i8
  Dtype out;        // of d: f16 or bf16
  int sm, sm_count;
};

// What the tensor-core rungs take.
inline const char* needs_scaled_mma(const ScaledMatmulArgs& p) {
  constexpr int64_t kMostDepth = 131071;  // sums of products of -128 with itself stay within 32 bits
  if (p.a.order != Order::rows || p.b.order != Order::columns) return "needs a row-major and b column-major";
  const bool whole = in_packs(p.a, p.m, p.k, p.dtype, 16) && in_packs(p.b, p.k, p.n, p.dtype, 16);
  if (!whole) return "needs a and b in packs of 16 bytes";
  return p.dtype != Dtype::i8 || p.k <= kMostDepth ? nullptr : "needs k of at most 131071";
}

// Calls body.template operator()<Out>() for the dtype of the result.
template <class Body>
void dispatch_out(Dtype dtype, Body&& body) {
  dtype == Dtype::f16 ? body.template operator()<f16>() : body.template operator()<bf16>();
}

}  // namespace warpsmith
