// Dropout that leaves a bit for each element: y = residual + dropout(x + bias).
#pragma once

#include <cstdint>

#include "device/philox.h"
#include "elementwise/dropout/mask.h"
#include "row/rows.h"

namespace warpsmith {

struct DropoutArgs {
  const void* x;         // [n]
  const void* bias;      // [cols], of which element i gets value i % cols; or null
  const void* residual;  // [n] or null
  void* y;               // [n]
  uint32_t* mask;        // [mask_words(n)]
  int64_t n, cols;
  Dropout dropout;
  Dtype dtype;  // of x, bias, residual and y
};

inline const char* needs_packs(const DropoutArgs& a) {
  const bool aligned = is_aligned(a.x, 16) && is_aligned(a.residual, 16) && is_aligned(a.bias, 16);
  if (!aligned) return "needs x, bias and residual aligned to 16 bytes";
  if (a.bias != nullptr && a.cols % (16 / size_of(a.dtype)) != 0)
    return "needs rows that are whole packs beside a bias";
  return nullptr;
}

}  // namespace warpsmith
