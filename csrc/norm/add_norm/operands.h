// What the bindings of the residual norms' gradients share with those of the norms.
#pragma once

#include "norm/forward/operands.h"

namespace warpsmith {

inline void make_contiguous(OptionalTensor& tensor) { tensor = dense(tensor); }

}  // namespace warpsmith
