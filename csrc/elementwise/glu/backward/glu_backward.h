// The gradient of glu: da = grad logistic(b), db = grad a logistic'(b).
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct GluBackwardArgs {
  const void* grad;  // [outer, inner]
  const void* x;     // [outer, 2, inner]: a and b
  void* dx;          // [outer, 2, inner]
  int64_t outer, inner;
  Dtype dtype;  // of all three
};

}  // namespace warpsmith
