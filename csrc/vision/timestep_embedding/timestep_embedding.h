// Embeddings of steps, read from a table: y[i] = table[t[i]].
#pragma once

#include "device/fast_divide.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"
#include "vision/steps.h"

namespace warpsmith {

struct TimestepEmbeddingArgs {
  const void* table;  // [steps, dim]
  Steps t;            // [n]
  void* y;            // [n, dim], contiguous
  int64_t n, dim;
  int64_t stride;  // elements from one row of the table to the next
  Dtype dtype;
};

}  // namespace warpsmith
