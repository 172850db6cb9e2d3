// Functions of two and three tensors.
#pragma once

#include "elementwise/map/functions.h"

namespace warpsmith {

using Maps = std::tuple<Binary<Add>, Binary<Mul>, Ternary<MulAdd>>;

}  // namespace warpsmith
