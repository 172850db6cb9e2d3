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

// Rows are moved: calls body.template operator()<T>() for an unsigned integer of the size of an element.
template <class Body>
void dispatch_row(Dtype dtype, Body&& body) {
  if (size_of(dtype) == 4) return body.template operator()<uint32_t>();
  body.template operator()<uint16_t>();
}

}  // namespace warpsmith
