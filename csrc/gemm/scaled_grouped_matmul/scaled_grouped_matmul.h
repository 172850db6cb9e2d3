// Products of groups of fp8 rows with scales:
//   d[r, j] = scale_x[r] scale_w[g, j] (x[r] w[g])[j] for the rows r of group g; rows of no group are not written.
#pragma once

#include <cstdint>

#include "gemm/groups.h"
#include "host/ceil_div.h"
#include "host/dtype.h"
#include "tile/matrix.h"

namespace warpsmith {

struct ScaledGroupedArgs {
  Matrix x;              // [m, k], row-major
  Matrix w;              // [groups, k, n], either way
  const float* scale_x;  // [m]
  const float* scale_w;  // [groups, n]
  int64_t step_x;        // elements from one value of scale_x to the next
  int64_t step_w, group_w;
  void* d;  // [m, n], contiguous
  Groups groups;
  int64_t m, n, k;       // each at least 1
  Dtype dtype, dtype_w;  // of x and w
  Dtype out;             // of d: f16, bf16 or f32
  bool fast_accum;       // sums may stay in the tensor cores, which keep some 14 bits of them
  int sm, sm_count;
};

// Calls body.template operator()<QX, QW>() for the formats of x and w.
template <class Body>
void dispatch_formats(const ScaledGroupedArgs& p, Body&& body) {
  dispatch_fp8(p.dtype,
               [&]<class QX>() { dispatch_fp8(p.dtype_w, [&]<class QW>() { body.template operator()<QX, QW>(); }); });
}

}  // namespace warpsmith
