// Activations of a sum with a bias, and their gradients.
#pragma once

#include "elementwise/map/functions.h"

namespace warpsmith {

using Maps =
    decltype(std::tuple_cat(Wrapped<Bias, BiasActivations>::type{}, Wrapped<BiasBackward, BiasActivations>::type{}));

}  // namespace warpsmith
