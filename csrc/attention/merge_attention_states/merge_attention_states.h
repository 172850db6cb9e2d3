// Joins two attentions of the same queries over different keys: each is weighted by its share of the sum of exponentials.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "host/dtype.h"

namespace warpsmith {

struct SumRows {
  float* data;  // [batch, heads, m]: natural logarithms of sums of exponentials
  int64_t batch, head, token;
};

struct MergeAttentionStatesArgs {
  HeadRows a, b, out;  // [batch, m, heads, d]
  SumRows lse_a, lse_b, lse;
  int64_t batch, m, heads, d;
  Dtype dtype;
};

}  // namespace warpsmith
