// The gradient of dropout, from the bits that it left: dx = grad * scale where a bit is set, otherwise 0.
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct DropoutBackwardArgs {
  const void* grad;      // [n]
  const uint32_t* mask;  // [ceil(n / 32)]: bit i % 32 of word i / 32 is that of element i
  void* dx;              // [n]
  int64_t n;
  float scale;
  Dtype dtype;  // of grad and dx
};

}  // namespace warpsmith
