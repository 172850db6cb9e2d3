// A matrix of 8-bit weights with scales times a few vectors: y[v, row] = scale[row] (a[row, 0] x[v, 0] + ...).
#pragma once

#include "gemm/skinny.h"
#include "host/dtype.h"
#include "row/rows.h"

namespace warpsmith {

struct GemvScaledArgs {
  SkinnyArgs call;  // of which the rungs but `naive` ask alignment; x and y of x_dtype; partial is the workspace
  int64_t a_col;    // elements from one column of a to the next
  int sm_count;
  Dtype dtype;    // of a: e4m3, e5m2 or i8
  Dtype x_dtype;  // of x and y
};

inline const char* needs_countable(const GemvScaledArgs& a) {
  return a.call.m <= kMostRows && a.call.k <= kMostRows ? nullptr : "needs m and k of at most 2^31 - 1";
}

inline bool tiles_weights(const GemvScaledArgs& a) {
  return (a.call.k == 1 || a.a_col == 1) && tiles_rows(a.call.a, a.call.m, a.call.k, a.call.a_row, a.dtype, 16);
}

inline const char* needs_packs(const GemvScaledArgs& a) {
  if (const char* reason = needs_countable(a)) return reason;
  return tiles_weights(a) ? nullptr : "needs rows aligned to 16 bytes";
}

// --- what `auto` takes ----------------------------------------------------------------------------

inline constexpr int64_t kLeastBlockK = 1024;  // shorter rows leave threads of a block without work

// Whether one vector meets a row in a warp: i8 is widened in so few instructions that reading the vector again for every
// row costs less than joining the sums of a block, once there are rows enough.
inline bool suits_warps(const GemvScaledArgs& a) { return a.dtype == Dtype::i8 && a.call.m >= 8192; }

// Calls body.template operator()<W>() for the dtype of the weights.
template <class Body>
void dispatch_weights(Dtype dtype, Body&& body) {
  if (dtype == Dtype::i8) return body.template operator()<int8_t>();
  dispatch_fp8(dtype, body);
}

// Calls body.template operator()<W, X>() for the dtypes of weights and vectors.
template <class Body>
void dispatch_scaled(const GemvScaledArgs& a, Body&& body) {
  dispatch_weights(a.dtype,
                   [&]<class W>() { dispatch_float(a.x_dtype, [&]<class X>() { body.template operator()<W, X>(); }); });
}

// --- how k is cut into slices ---------------------------------------------------------------------

inline int split_k_slices(const GemvScaledArgs& a) {
  constexpr int64_t kRows = 4, kLeastBytes = 8192;  // rows of a block, bytes of each of them in a slice
  return slices_of_k((a.call.m + kRows - 1) / kRows, 8 * a.sm_count, a.call.k / kLeastBytes);
}

inline int skinny_slices(const GemvScaledArgs& a) { return skinny_ring_slices(a.call.m, a.call.k, a.sm_count); }

// For a launch with that many slices.
inline SkinnyArgs with_slices(SkinnyArgs call, int slices) {
  call.splits = slices;
  if (slices == 1) call.partial = nullptr;
  return call;
}

}  // namespace warpsmith
