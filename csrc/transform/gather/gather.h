// Rows by their indices: y[o, j] = x[o, index[j]], a row being `inner` contiguous values.
#pragma once

#include <cstdint>

#include "host/dtype.h"

namespace warpsmith {

struct GatherArgs {
  const void* x;      // [outer, rows, inner]
  void* y;            // [outer, count, inner]
  const void* index;  // [count]
  int64_t outer, rows, count, inner;
  int64_t x_outer, x_row;  // strides
  float scale;             // what rows are multiplied with
  bool scaled;             // other than by 1
  bool zeros;              // an index below 0 stands for a row of zeros
  bool wide;               // indices have 64 bits
  Dtype dtype;

  int64_t elements() const { return outer * count * inner; }
};

}  // namespace warpsmith
