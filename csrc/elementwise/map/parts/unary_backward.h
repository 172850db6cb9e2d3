// Gradients of activations.
#pragma once

#include "elementwise/map/functions.h"

namespace warpsmith {

using Maps = Wrapped<UnaryBackward, Activations>::type;

}  // namespace warpsmith
