// The gradient of nearest upsampling: of each value, the sum of what came of it, row by row, in f32.
#pragma once

#include "vision/upsample_nearest2d/upsample_nearest2d.h"

namespace warpsmith {

// A ladder of its own over the same arguments.
struct UpsampleBackwardArgs : UpsampleArgs {};

}  // namespace warpsmith
