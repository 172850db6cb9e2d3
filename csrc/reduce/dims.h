// What the bindings of operators along one dimension share: a tensor seen around it.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <vector>

#include "host/checks.h"
#include "host/min_max.h"
#include "host/tensor.h"

namespace warpsmith {

inline void check_real(const char* op, const Tensor& x) {
  const ScalarType type = x.scalar_type();
  if (type == ScalarType::ComplexHalf || type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble) {
    fail(op, "expected x to hold real numbers, got ", dtype_name(type));
  }
}

// x[o, j, i], with j along the dimension.
struct DimView {
  int64_t outer, n, inner;
  int64_t stride_outer, stride_n, stride_inner;  // elements; 0 for a size of 1
};

namespace detail {

// Dimensions as one; `merges` where a single stride walks them.
struct MergedDims {
  int64_t size, stride;
  bool merges;
};

inline MergedDims merge_dims(Sizes sizes, Sizes strides, size_t first, size_t last) {
  MergedDims merged{1, 0, true};
  for (size_t d = last; d-- > first;) {
    if (sizes[d] == 1) continue;
    if (merged.size == 1) {
      merged.stride = strides[d];
    } else {
      merged.merges = merged.merges && strides[d] == merged.stride * merged.size;
    }
    merged.size *= sizes[d];
  }
  return merged;
}

// One dimension of what two of them hold, the inner one first in memory.
inline MergedDims merge_two(const MergedDims& outer, const MergedDims& inner) {
  if (inner.size == 1) return outer;
  if (outer.size == 1) return inner;
  return {outer.size * inner.size, inner.stride,
          outer.merges && inner.merges && outer.stride == inner.stride * inner.size};
}

}  // namespace detail

// Everything before the dimension and everything after it, as one dimension each.
struct AroundDim {
  detail::MergedDims outer, inner;
  int64_t n, stride_n;

  AroundDim(const Tensor& x, int64_t dim) {
    const Sizes sizes = x.sizes(), strides = x.strides();
    const size_t rank = sizes.size(), d = static_cast<size_t>(dim);
    outer = detail::merge_dims(sizes, strides, 0, std::min(d, rank));
    inner = detail::merge_dims(sizes, strides, std::min(d + 1, rank), rank);
    n = rank == 0 ? 1 : sizes[d];
    stride_n = n == 1 ? 0 : strides[d];
  }

  DimView rows(const detail::MergedDims& kept) const { return {kept.size, n, 1, kept.stride, stride_n, 0}; }
  DimView columns(const detail::MergedDims& before, const detail::MergedDims& after) const {
    return {before.size, n, after.size, before.stride, stride_n, after.stride};
  }
  bool has_unit_stride() const { return n == 1 || stride_n == 1; }
};

// As its shape says: rows of unit stride, or neighbouring columns. A copy takes the place of a
// tensor that lies in memory otherwise. Not for tensors without values, whose strides count as contiguous whatever they
// are, so that a copy would not change them.
inline DimView view_by_shape(Tensor& x, int64_t dim, bool rows) {
  for (;;) {
    const AroundDim around(x, dim);
    const bool fits = rows ? around.has_unit_stride() : around.inner.size == 1 || around.inner.stride == 1;
    if (fits && around.outer.merges && around.inner.merges) {
      return rows ? around.rows(around.outer) : around.columns(around.outer, around.inner);
    }
    x = torch::stable::contiguous(x);
  }
}

}  // namespace warpsmith
