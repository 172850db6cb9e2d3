// Softmax of attention scores, and the same with dropout: y = dropout(softmax(x * scale + bias, masked)) over rows.
#pragma once

#include "device/philox.h"
#include "softmax/logits.h"

namespace warpsmith {

struct ScaledMaskedSoftmaxArgs {
  LogitArgs logits;
  void* y;          // [rows, cols], contiguous, dtype of x; zero where excluded by the diagonal, or with the whole row
  float* lse;       // [rows]: log of the sum of e^z; null where nobody asks for it
  Dropout dropout;  // of y
};

}  // namespace warpsmith
