// Tensors as the matrices of a product: what the bindings of the family share.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "gemm/gemm.h"
#include "host/tensor.h"
#include "row/operands.h"

namespace warpsmith {

inline constexpr size_t kMostDims = 64;  // PyTorch's own limit

// Sizes and strides of a tensor of at least two dimensions; a vector gains one.
struct Layout {
  std::array<int64_t, kMostDims + 1> size, stride;
  size_t rank = 0;

  void append(int64_t new_size, int64_t new_stride) {
    size[rank] = new_size;
    stride[rank++] = new_stride;
  }
  int64_t rows() const { return size[rank - 2]; }
  int64_t cols() const { return size[rank - 1]; }
  size_t lead() const { return rank - 2; }
};

// How a tensor becomes matrices.
enum class Reading {
  left,        // a vector is a row
  right,       // a vector is a column
  transposed,  // the last two dimensions swap places
};

inline Layout layout_of(const Tensor& x, Reading reading) {
  const Sizes sizes = x.sizes(), strides = x.strides();
  Layout layout;
  if (sizes.size() == 1 && reading == Reading::left) layout.append(1, 0);
  for (size_t i = 0; i < sizes.size(); ++i) layout.append(sizes[i], strides[i]);
  if (sizes.size() == 1 && reading == Reading::right) layout.append(1, 0);
  if (reading == Reading::transposed) {
    std::swap(layout.size[layout.rank - 1], layout.size[layout.rank - 2]);
    std::swap(layout.stride[layout.rank - 1], layout.stride[layout.rank - 2]);
  }
  return layout;
}

// The shape that the dimensions before the last two broadcast to.
struct Batch {
  std::array<int64_t, kMostDims + 1> size;
  size_t rank = 0;

  int64_t count() const {
    int64_t count = 1;
    for (size_t i = 0; i < rank; ++i) count *= size[i];
    return count;
  }
};

// False where they do not broadcast.
inline bool broadcast(Batch& to, const Layout& a, const Layout& b) {
  to.rank = std::max(a.lead(), b.lead());
  for (size_t i = 0; i < to.rank; ++i) {  // from the last on
    const int64_t of_a = i < a.lead() ? a.size[a.lead() - 1 - i] : 1,
                  of_b = i < b.lead() ? b.size[b.lead() - 1 - i] : 1;
    if (of_a != of_b && of_a != 1 && of_b != 1) return false;
    to.size[to.rank - 1 - i] = of_a == 1 ? of_b : of_a;
  }
  return true;
}

// The one stride that walks the batch, 0 where all of it shares a matrix; false where there is none.
inline bool batch_stride(int64_t& stride, const Layout& x, const Batch& batch) {
  int64_t count = 1;
  stride = 0;
  for (size_t i = 0; i < batch.rank; ++i) {  // from the last on
    const int64_t size = batch.size[batch.rank - 1 - i];
    if (size == 1) continue;
    const bool repeats = i >= x.lead() || x.size[x.lead() - 1 - i] == 1;
    const int64_t own = repeats ? 0 : x.stride[x.lead() - 1 - i];
    if (count == 1) stride = own;
    if (own != stride * count) return false;
    count *= size;
  }
  return true;
}

// Rows where they are contiguous, else columns; false where neither do. A column of one is contiguous as a column.
inline bool order_matrix(Matrix& to, const Layout& x) {
  const int64_t row_stride = x.stride[x.rank - 2], col_stride = x.stride[x.rank - 1];
  const bool unit_rows = x.rows() == 1 || row_stride == 1, unit_cols = x.cols() == 1 || col_stride == 1;
  const bool by_columns = unit_rows && (x.cols() == 1 || !unit_cols);
  to.order = by_columns ? Order::columns : Order::rows;
  if (by_columns) {
    to.ld = x.cols() > 1 ? col_stride : 0;
  } else {
    to.ld = x.rows() > 1 ? row_stride : 0;
  }
  return unit_rows || unit_cols;
}

// `tensor` as a batch of matrices. A contiguous copy takes its place where no single stride walks them.
inline Matrix as_matrices(Tensor& tensor, Reading reading, const Batch& batch) {
  Matrix matrix{.data = tensor.data_ptr()};
  const auto walk = [&] {
    const Layout layout = layout_of(tensor, reading);
    return order_matrix(matrix, layout) && batch_stride(matrix.batch, layout, batch);
  };
  if (walk()) return matrix;

  const Sizes sizes = tensor.sizes();
  Layout whole;
  if (sizes.size() > 2) {
    for (size_t i = 0; i < batch.rank; ++i) whole.append(batch.size[i], 0);
    for (size_t i = sizes.size() - 2; i < sizes.size(); ++i) whole.append(sizes[i], 0);
  } else {
    for (const int64_t size : sizes) whole.append(size, 0);
  }
  Tensor copy = empty_contiguous(tensor, Sizes(whole.size.data(), whole.rank), tensor.scalar_type());
  torch::stable::copy_(copy, tensor);
  tensor = copy;
  matrix.data = tensor.data_ptr();
  if (!walk()) throw std::logic_error("one stride walks a contiguous tensor");
  return matrix;
}

// [rows, cols] as the kernels read it, whose rows are contiguous, or its columns; a copy takes the place of `x` where they
// are not.
inline Matrix ordered(Tensor& x, Order order) {
  const int along = order == Order::rows ? 1 : 0;
  if (x.size(along) > 1 && x.stride(along) != 1) {
    const std::array<int64_t, 2> strides =
        order == Order::rows ? std::array{x.size(1), int64_t{1}} : std::array{int64_t{1}, x.size(0)};
    Tensor copy = empty_strided(x, x.sizes(), Sizes(strides.data(), 2), x.scalar_type());
    torch::stable::copy_(copy, x);
    x = copy;
  }
  return {.data = x.data_ptr(), .ld = x.size(1 - along) > 1 ? x.stride(1 - along) : 0, .batch = 0, .order = order};
}

// Device and dtype of `x`, which messages call `like`.
inline void check_alike(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& x,
                        std::string_view like) {
  check_device_like(op, name, tensor, x, like);
  if (tensor.scalar_type() == x.scalar_type()) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(x.scalar_type()), " like ", like, ", got ",
       dtype_name(tensor.scalar_type()));
}

inline bool broadcasts_to(Sizes from, Sizes to) {
  if (from.size() > to.size()) return false;
  for (size_t i = 1; i <= from.size(); ++i) {
    if (from[from.size() - i] != 1 && from[from.size() - i] != to[to.size() - i]) return false;
  }
  return true;
}

// What is added to products of m x n: broadcast like `x`, a copy in its place where no single stride walks the batch.
inline Addend as_addend(Tensor& tensor, const Batch& batch, int64_t m, int64_t n) {
  Addend addend{.data = tensor.data_ptr()};
  const auto walk = [&] {
    Layout layout;
    for (size_t rank = tensor.sizes().size(); rank < 2; ++rank) layout.append(1, 0);
    for (size_t i = 0; i < tensor.sizes().size(); ++i) layout.append(tensor.sizes()[i], tensor.strides()[i]);
    addend.row = layout.rows() > 1 ? layout.stride[layout.rank - 2] : 0;
    addend.col = layout.cols() > 1 ? layout.stride[layout.rank - 1] : 0;
    return batch_stride(addend.batch, layout, batch);
  };
  if (walk()) return addend;

  Layout whole;
  for (size_t i = 0; i < batch.rank; ++i) whole.append(batch.size[i], 0);
  whole.append(m, 0);
  whole.append(n, 0);
  Tensor copy = empty_contiguous(tensor, Sizes(whole.size.data(), whole.rank), tensor.scalar_type());
  torch::stable::copy_(copy, tensor);
  tensor = copy;
  addend.data = tensor.data_ptr();
  if (!walk()) throw std::logic_error("one stride walks a contiguous tensor");
  return addend;
}

// A batch that shares b, and whose rows of a one stride walks, is one product with more rows.
inline void merge_batch_into_rows(GemmArgs& p) {
  if (p.batch == 1 || p.b.batch != 0 || p.a.order != Order::rows) return;
  if (p.c.data != nullptr && p.c.batch != p.c.row * p.m) return;
  if (p.m == 1) {
    p.a.ld = p.a.batch;
    p.c.row = p.c.batch;
  } else if (p.a.batch != p.a.ld * p.m) {
    return;
  }
  p.m *= p.batch;
  p.batch = 1;
  p.a.batch = p.c.batch = 0;
}

}  // namespace warpsmith
