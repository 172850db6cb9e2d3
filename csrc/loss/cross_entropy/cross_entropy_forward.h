// Cross-entropy of every row, and the log-sum-exp that its gradient needs.
#pragma once

#include "loss/cross_entropy.h"

namespace warpsmith {

struct CrossEntropyForwardArgs {
  CrossEntropyInput in;
  float* loss;  // [rows]
  float* lse;   // [rows]
};

}  // namespace warpsmith
