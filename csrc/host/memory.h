// How operands of bindings lie in memory.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "host/tensor.h"

namespace warpsmith {

// What is written to must have memory of its own for each element. Strides from the smallest on have to reach beyond all
// that those before them reach.
inline void check_apart(std::string_view op, std::string_view name, const Tensor& x) {
  const Sizes sizes = x.sizes(), strides = x.strides();
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return;
    if (sizes[d] > 1) dims.emplace_back(strides[d], sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride == 0) fail(op, "expected ", name, " that are not expanded, as they are written to");
    if (stride <= reach) fail(op, "expected ", name, " without elements that overlap, as they are written to");
    reach += (size - 1) * stride;
  }
}

// Whether elements lie with these strides, whatever is said of dimensions that have one.
inline bool lies_with(const Tensor& x, Sizes strides) {
  const Sizes sizes = x.sizes(), own = x.strides();
  for (size_t d = 0; d < strides.size(); ++d) {
    if (sizes[d] != 1 && own[d] != strides[d]) return false;
  }
  return true;
}

inline bool has_unit_columns(const Tensor& x) {
  return x.dim() == 0 || x.size(x.dim() - 1) <= 1 || x.stride(x.dim() - 1) == 1;
}

// The tensor, or a copy whose last dimension is contiguous.
inline Tensor with_unit_columns(const Tensor& x) { return has_unit_columns(x) ? x : torch::stable::contiguous(x); }

// Uninitialised, with the strides of `x` where it is dense and its last dimension contiguous, else contiguous.
inline Tensor empty_rows_like(const Tensor& x) {
  if (is_dense(x) && has_unit_columns(x)) return empty_strided(x, x.sizes(), x.strides(), x.scalar_type());
  return empty_contiguous(x, x.sizes(), x.scalar_type());
}

// From one to the next along a dimension; 0 where there is no next.
inline int64_t step(const Tensor& x, int64_t dim) { return x.size(dim) > 1 ? x.stride(dim) : 0; }

}  // namespace warpsmith
