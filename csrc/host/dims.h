// The argument that names a dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "host/tensor.h"

namespace warpsmith {

// `dim` counted from the front. As in PyTorch, a tensor without dimensions passes for one of size 1, and what Python
// gets to see is an IndexError.
inline int64_t check_dim(std::string_view op, const Tensor& x, int64_t dim) {
  const int64_t rank = std::max<int64_t>(x.dim(), 1);
  if (dim >= -rank && dim < rank) return dim < 0 ? dim + rank : dim;
  throw std::out_of_range(std::string(op) + ": expected dim to lie in [" + std::to_string(-rank) + ", " +
                          std::to_string(rank - 1) + "], got " + std::to_string(dim));
}

}  // namespace warpsmith
