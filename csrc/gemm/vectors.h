// What the bindings of products of a matrix and a few vectors share.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "gemm/skinny.h"
#include "host/into.h"
#include "host/tensor.h"
#include "row/operands.h"
#include "row/rows.h"

namespace warpsmith {

inline void check_matrix(std::string_view op, const Tensor& a) {
  if (a.dim() != 2) fail(op, "expected a to be 2-D, got shape ", shape_text(a.sizes()));
}

inline void check_same_dtype_as_a(std::string_view op, const Tensor& x, const Tensor& a) {
  if (x.scalar_type() == a.scalar_type()) return;
  fail(op, "expected x to have dtype ", dtype_name(a.scalar_type()), " like a, got ", dtype_name(x.scalar_type()));
}

// [k] or [vectors, k] for a of [m, k].
inline void check_vectors(std::string_view op, const Tensor& x, const Tensor& a) {
  if (x.dim() != 1 && x.dim() != 2) fail(op, "expected x to be 1-D or 2-D, got shape ", shape_text(x.sizes()));
  const int64_t k = a.size(1);
  if (x.size(x.dim() - 1) != k) {
    fail(op, "expected x to have ", std::to_string(k), " values in its last dimension, one per column of a, got shape ",
         shape_text(x.sizes()));
  }
  if (x.dim() == 2 && x.size(0) > kMostVectors) {
    fail(op, "expected x to have at most ", std::to_string(kMostVectors), " rows, got ", std::to_string(x.size(0)));
  }
}

inline int vector_count(const Tensor& x) { return x.dim() == 1 ? 1 : static_cast<int>(x.size(0)); }

// Elements from one vector to the next.
inline int64_t vector_stride(const Tensor& x) { return x.dim() == 1 ? 0 : x.stride(0); }

// [m] or [vectors, m].
inline Tensor product_of(const CallInto& call, const Tensor& a, const Tensor& x, ScalarType type) {
  const int64_t sizes[2] = {x.size(0), a.size(0)};
  return result(call, a, x.dim() == 1 ? Sizes(sizes + 1, 1) : Sizes(sizes, 2), type);
}

// x, or a copy where its vectors are not contiguous or accesses of `width` values do not tile them: they are small beside
// the weights, which are then read as widely as they can be.
inline Tensor aligned_vectors(const Tensor& x, Dtype dtype, int width) {
  const int64_t k = x.size(x.dim() - 1), step = x.stride(x.dim() - 1);
  const bool fits =
      (k == 1 || step == 1) && tiles_rows(x.data_ptr(), vector_count(x), k, vector_stride(x), dtype, width);
  if (fits) return x;
  return x.is_contiguous() ? torch::stable::clone(x) : torch::stable::contiguous(x);
}

}  // namespace warpsmith
