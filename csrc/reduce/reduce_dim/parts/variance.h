// Variances.
#pragma once

#include "reduce/reduce_dim/reduce_dim.h"

namespace warpsmith {

inline constexpr Reduction kPart[] = {Reduction::var};

}  // namespace warpsmith
