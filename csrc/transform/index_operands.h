// Indices as bindings get them, checked in the words of kernels/warpsmith/transform/indices.py.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "host/checks.h"
#include "host/memory.h"

namespace warpsmith {

inline void check_index_dtype(std::string_view op, std::string_view name, const Tensor& index, const Tensor& x,
                              std::string_view like) {
  check_device_like(op, name, index, x, like);
  if (index.scalar_type() != ScalarType::Long && index.scalar_type() != ScalarType::Int) {
    fail(op, "expected ", name, " to have dtype torch.int64 or torch.int32, got ", dtype_name(index.scalar_type()));
  }
}

inline void check_index(std::string_view op, const Tensor& index, const Tensor& x, std::string_view like) {
  check_index_dtype(op, "index", index, x, like);
  if (index.dim() != 1) fail(op, "expected index to have 1 dimension, got shape ", shape_text(index.sizes()));
}

inline int64_t product(Sizes sizes, int64_t first, int64_t last) {
  int64_t n = 1;
  for (int64_t d = first; d < last; ++d) n *= sizes[static_cast<size_t>(d)];
  return n;
}

inline bool is_wide(const Tensor& index) { return index.scalar_type() == ScalarType::Long; }

}  // namespace warpsmith
