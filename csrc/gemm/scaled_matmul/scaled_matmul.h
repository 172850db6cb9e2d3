// Products of 8-bit matrices with scales: d[i, j] = scale_a[i] scale_b[j] (a[i, 0] b[0, j] + ...), or with scales of blocks of
// k; results of fp8 are multiplied by a scale of their own and saturate.
#pragma once

#include <cstdint>

#include "gemm/gemm.h"

namespace warpsmith {

inline constexpr int64_t kScaleBlock = 128;  // values of k, and columns of b, that share a scale of blocks

// One value for all; one for each row of a or column of b; or, of blocks, [rows of a, k / 128] and [k / 128, columns of b /
// 128].
struct Scales {
  const float* data;
  int64_t step;    // from one row of a, or column or block of columns of b, to the next; 0 where they share one
  int64_t step_k;  // from one block of k to the next; 0 where all of k shares one
};

struct ScaledMatmulArgs {
  Matrix a, b;  // [m, k], [k, n]; no batch
  Scales scale_a, scale_b;
  const float* scale_result;  // of results of fp8; nullptr: 1
  void* d;                    // [m, n], contiguous
  void* workspace;            // scaled_workspace_bytes(), or nullptr where that is 0
  int64_t m, n, k;            // each at least 1
  Dtype dtype;                // of a: e4m3, e5m2 or i8
  Dtype dtype_b;              // of b: as a, or the other format of fp8
  Dtype out;                  // of d: f16, bf16, f32, e4m3 or e5m2
  bool blocks;                // scales are of blocks
  bool fast_accum;            // long sums of fp8 may stay in the tensor cores, which keep some 14 bits of them
  int sm, sm_count;
};

// Of int8: sums of products of -128 with itself stay within 32 bits.
inline const char* needs_countable_sums(const ScaledMatmulArgs& p) {
  return p.k <= 131071 ? nullptr : "needs k of at most 131071";
}

// What the rungs by mma.sync take.
inline const char* needs_scaled_mma(const ScaledMatmulArgs& p) {
  if (p.a.order != Order::rows || p.b.order != Order::columns) return "needs a row-major and b column-major";
  const bool whole = in_packs(p.a, p.m, p.k, p.dtype, 16) && in_packs(p.b, p.k, p.n, p.dtype, 16);
  return whole ? nullptr : "needs a and b in packs of 16 bytes";
}

// Of the rungs of int8, whose sums are scaled once.
inline const char* needs_scales_of_all_k(const ScaledMatmulArgs& p) {
  return p.blocks ? "takes no scales of blocks" : nullptr;
}

// The result of a product that e4m3 and e5m2 share the code of: the call's `out` says which.
struct EitherFp8 {
  uint8_t bits;
};

// In place of the type of the result, of a kernel that has code for all of them.
struct AnyOut {};

// Calls body.template operator()<Out>() for the dtype of the result.
template <class Body>
void dispatch_out(Dtype dtype, Body&& body) {
  if (is_fp8(dtype)) return body.template operator()<EitherFp8>();
  dispatch_float(dtype, body);
}

// Calls body.template operator()<QA, QB>() for the formats of fp8 of a and b.
template <class Body>
void dispatch_formats(const ScaledMatmulArgs& p, Body&& body) {
  dispatch_fp8(p.dtype,
               [&]<class QA>() { dispatch_fp8(p.dtype_b, [&]<class QB>() { body.template operator()<QA, QB>(); }); });
}

}  // namespace warpsmith
