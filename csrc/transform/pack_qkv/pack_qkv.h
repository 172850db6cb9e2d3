// Heads put together as a fused projection has them.
#pragma once

#include "transform/qkv.h"

namespace warpsmith {

struct PackQkvArgs : QkvArgs {};

}  // namespace warpsmith
