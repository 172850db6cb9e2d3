// Products of groups of fp8 values with scales. Of groups of rows:
//   d[r, j] = scale_x[r] scale_w[g, j] (x[r] w[g])[j] for the rows r of group g; rows of no group are not written.
// Of groups along k:
//   d[g, i, j] = scale_x[g, i] scale_w[g, j] (x_g w_g)[i, j] for the values of k of group g; zeros where it has none.
#pragma once

#include <cstdint>

#include "gemm/groups.h"
#include "host/dtype.h"
#include "tile/matrix.h"

namespace warpsmith {

struct ScaledGroupedArgs {
  Matrix x;                  // [m, k], row-major
  Matrix w;                  // [groups, k, n], either way; of groups along k [k, n], column-major
  const float* scale_x;      // [m], or [groups, m]
  const float* scale_w;      // [groups, n]
  int64_t step_x, step_w;    // elements from one value of a scale to the next
  int64_t group_x, group_w;  // and from one group to the next; 0 in scale_x of rows
  void* d;                   // [m, n], or [groups, m, n], contiguous
  Groups groups;
  int64_t m, n, k;  // each at least 1
  bool along_k;
  Dtype dtype, dtype_w;  // of x and w
  Dtype out;             // of d: f16, bf16 or f32
  bool fast_accum;       // sums may stay in the tensor cores, which keep some 14 bits of them
  int sm, sm_count;
};

inline const char* needs_operand_packs_16(const ScaledGroupedArgs& p) {
  const bool whole = in_packs(p.x, p.m, p.k, p.dtype, 16) && in_packs(p.w, p.k, p.n, p.dtype_w, 16);
  return whole ? nullptr : "needs x and w in packs of 16 bytes";
}

// Of the rungs for groups of rows, and of those for groups along k.
inline const char* needs_rows(const ScaledGroupedArgs& p) { return p.along_k ? "takes groups of rows" : nullptr; }
inline const char* needs_along_k(const ScaledGroupedArgs& p) { return p.along_k ? nullptr : "takes groups along k"; }

// Calls body.template operator()<QX, QW>() for the formats of x and w.
template <class Body>
void dispatch_formats(const ScaledGroupedArgs& p, Body&& body) {
  dispatch_fp8(p.dtype,
               [&]<class QX>() { dispatch_fp8(p.dtype_w, [&]<class QW>() { body.template operator()<QX, QW>(); }); });
}

}  // namespace warpsmith
