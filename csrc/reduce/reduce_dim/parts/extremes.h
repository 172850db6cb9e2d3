// Extreme values.
#pragma once

#include "reduce/reduce_dim/reduce_dim.h"

namespace warpsmith {

inline constexpr Reduction kPart[] = {Reduction::amax, Reduction::amin};

}  // namespace warpsmith
