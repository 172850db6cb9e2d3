// Rotary positions applied to queries and keys.
#pragma once

#include <cuda_runtime.h>

#include "rotary/rotary.h"

namespace warpsmith {

struct RopeArgs {
  RotaryHeads q, k;
  RotaryAngles angles;
  int batch, tokens, d;
  bool in_place;  // y is x: what does not turn stays
  Dtype dtype;

  __host__ __device__ int rotary() const { return 2 * angles.pairs; }  // values of a head that turn
};

}  // namespace warpsmith
