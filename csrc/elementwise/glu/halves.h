// What the bindings of glu and its gradient share: the dimension's checks, and x as [outer, 2, inner].
#pragma once

#include <string_view>

#include "host/checks.h"
#include "row/operands.h"

namespace warpsmith {

struct Halves {
  int64_t at = 0;  // the dimension, counted from the front
  int64_t outer = 1, inner = 1;
};

inline Halves halves_along(std::string_view op, const Tensor& x, int64_t dim) {
  if (x.dim() == 0) fail(op, "expected at least 1 dimension in x, got shape ()");
  const int64_t at = check_dim(op, x, dim);
  if (x.size(at) % 2 != 0) {
    fail(op, "expected dimension ", std::to_string(at), " of x to be even, got shape ", shape_text(x.sizes()));
  }
  Halves halves{at, 1, x.size(at) / 2};
  for (int64_t d = 0; d < at; ++d) halves.outer *= x.size(d);
  for (int64_t d = at + 1; d < x.dim(); ++d) halves.inner *= x.size(d);
  return halves;
}

}  // namespace warpsmith
