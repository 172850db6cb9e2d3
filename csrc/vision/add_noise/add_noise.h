// Diffusion's forward step: y = a x + b noise, with a and b from a table of the schedule, by the step of each sample.
#pragma once

#include "device/fast_divide.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"
#include "vision/steps.h"

namespace warpsmith {

struct AddNoiseArgs {
  const void *x, *noise;  // [n, inner]
  const float* table;     // [steps, 2]: a and b, contiguous
  Steps t;                // [n]
  void* y;                // [n, inner]
  int64_t n, inner;
  Dtype dtype;
};

}  // namespace warpsmith
