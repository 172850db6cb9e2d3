// Activations times another tensor, and their gradients.
#pragma once

#include "elementwise/map/functions.h"

namespace warpsmith {

using Maps = decltype(std::tuple_cat(Wrapped<Gated, GatedActivations>::type{},
                                     Wrapped<GatedBackward, GatedActivations>::type{}));

}  // namespace warpsmith
