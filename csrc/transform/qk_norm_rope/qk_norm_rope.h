// Queries and keys normalised head by head, then turned by rotary positions.
#pragma once

#include "transform/rope/rope.h"

namespace warpsmith {

struct QkNormRopeArgs {
  RopeArgs rope;
  const void *q_weight, *k_weight;  // [d]
  float eps;
  Dtype weight_dtype;  // f32, or that of the heads
};

}  // namespace warpsmith
