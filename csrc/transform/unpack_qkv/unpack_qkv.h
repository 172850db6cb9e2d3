// A fused projection taken apart into heads, with its bias.
#pragma once

#include "transform/qkv.h"

namespace warpsmith {

struct UnpackQkvArgs : QkvArgs {};

}  // namespace warpsmith
