// Activations.
#pragma once

#include "elementwise/map/functions.h"

namespace warpsmith {

using Maps = Wrapped<Unary, Activations>::type;

}  // namespace warpsmith
