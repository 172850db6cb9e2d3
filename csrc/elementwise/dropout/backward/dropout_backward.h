// The gradient of dropout, from the bits that it left: dx = grad * scale where a bit is set, otherwise 0.
#pragma once

#include <cstdint>

#include "elementwise/dropout/mask.h"
#include "row/rows.h"

namespace warpsmith {

struct DropoutBackwardArgs {
  const void* grad;      // [n]
  const uint32_t* mask;  // [mask_words(n)]
  void* dx;              // [n]
  int64_t n;
  float scale;
  Dtype dtype;  // of grad and dx
};

}  // namespace warpsmith
