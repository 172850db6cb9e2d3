// A tensor as softmaxes along one dimension: what the bindings of the family and its kernels mean by rows.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "host/checks.h"
#include "host/tensor.h"

namespace warpsmith {

// [outer, cols, inner]: the dimensions before `dim`, `dim` itself, and those after it, whose elements are neighbours.
struct Slices {
  int64_t outer, cols, inner;
  int64_t stride;      // elements from one outer index to the next
  int64_t col_stride;  // elements from one column to the next; 1 where inner is 1
};

// The dimensions before and after `dim` merge where a single stride walks them; otherwise a copy replaces `tensor`.
inline Slices as_slices(Tensor& tensor, int64_t dim) {
  const Sizes sizes = tensor.sizes(), strides = tensor.strides();
  if (sizes.empty()) return {1, 1, 1, 1, 1};
  const size_t at = static_cast<size_t>(dim);
  const int64_t cols = sizes[at];
  bool merges = true;
  int64_t inner = 1;
  for (size_t d = sizes.size(); --d > at;) {
    if (sizes[d] == 1) continue;
    merges = merges && strides[d] == inner;
    inner *= sizes[d];
  }
  int64_t outer = 1, stride = cols * inner;
  for (size_t d = at; d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (outer == 1) {
      stride = strides[d];
    } else {
      merges = merges && strides[d] == stride * outer;
    }
    outer *= sizes[d];
  }
  const int64_t col_stride = cols == 1 ? inner : strides[at];
  merges = merges && (inner > 1 || col_stride == 1);
  if (merges) return {outer, cols, inner, stride, col_stride};
  tensor = torch::stable::contiguous(tensor);
  return {outer, cols, inner, cols * inner, inner};
}

// A workspace of that many words of 4 bytes.
inline Tensor empty_words(const Tensor& like, int64_t words) {
  return empty_contiguous(like, Sizes(&words, 1), ScalarType::Float);
}

}  // namespace warpsmith
