// Functions of two and three tensors.
#pragma once

#include "elementwise/map/functions.h"

namespace warpsmith {

using Maps =
    decltype(std::tuple_cat(Wrapped<Binary, BinaryFunctions>::type{}, Wrapped<Ternary, TernaryFunctions>::type{}));

}  // namespace warpsmith
