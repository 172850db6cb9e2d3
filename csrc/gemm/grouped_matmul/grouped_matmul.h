// Products of groups, as every kernel of the ladder is given them. Of groups of rows:
//   d[r] = x[r] w[g] for the rows r of group g, with x [m, k], w [groups, k, n], d [m, n]; rows of no group are not written.
// Of groups along k:
//   d[g] = x_g w_g for the values of k of group g, with x [m, k], w [k, n], d [groups, m, n]; zeros where it has none.
// kernels/warpsmith/gemm/grouped.py says the conditions in the same words.
#pragma once

#include <cstdint>

#include "gemm/groups.h"
#include "host/dtype.h"
#include "tile/matrix.h"

namespace warpsmith {

struct GroupedArgs {
  Matrix x;  // [m, k]: row-major of groups of rows, column-major of groups along k
  Matrix w;  // [groups, k, n], either way; row-major of groups along k
  void* d;   // contiguous
  Groups groups;
  int64_t m, n, k;  // each at least 1
  bool along_k;
  Dtype dtype;
  int sm, sm_count;
};

inline const char* needs_16_bits(const GroupedArgs& p) {
  return p.dtype == Dtype::f32 ? "takes f16 and bf16" : nullptr;
}

inline const char* needs_operand_packs_16(const GroupedArgs& p) {
  const bool whole = in_packs(p.x, p.m, p.k, p.dtype, 16) && in_packs(p.w, p.k, p.n, p.dtype, 16);
  return whole ? nullptr : "needs x and w in packs of 16 bytes";
}

}  // namespace warpsmith
