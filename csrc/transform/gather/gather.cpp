// embedding, index_select and gather_rows: checks, allocation, the choice of the rung.
#include "transform/gather/gather.h"

#include <vector>

#include "host/serve.h"
#include "transform/index_operands.h"

namespace warpsmith {
namespace {

const Ladder<GatherArgs> ladder{"gather"};

// Of x along `dim`, of which the rows behind are contiguous.
GatherArgs gather_args(const Tensor& x, const Tensor& y, const Tensor& index, int64_t dim) {
  const Sizes sizes = x.sizes();
  return {
      .x = x.data_ptr(),
      .y = y.data_ptr(),
      .index = index.data_ptr(),
      .outer = product(sizes, 0, dim),
      .rows = sizes[static_cast<size_t>(dim)],
      .count = index.numel(),
      .inner = product(sizes, dim + 1, x.dim()),
      .x_outer = product(sizes, dim, x.dim()),
      .x_row = product(sizes, dim + 1, x.dim()),
      .scale = 1.0f,
      .scaled = false,
      .zeros = false,
      .wide = is_wide(index),
      .dtype = *kernel_dtype(x.scalar_type()),
  };
}

std::optional<Tensor> embedding(const Call& call, const Tensor& weight, const Tensor& indices,
                                std::optional<int64_t> padding_idx, double scale) {
  constexpr const char* kOp = "embedding";
  check_floating(kOp, "weight", weight);
  if (weight.dim() != 2) fail(kOp, "expected weight to have shape [rows, cols], got ", shape_text(weight.sizes()));
  check_index_dtype(kOp, "indices", indices, weight, "weight");
  if (padding_idx && (*padding_idx < -weight.size(0) || *padding_idx >= weight.size(0))) {
    fail(kOp, "expected padding_idx to be one of ", std::to_string(weight.size(0)), " rows, got ",
         std::to_string(*padding_idx));
  }
  if (!has_kernel(call, weight, kernel_dtype(weight.scalar_type()).has_value())) return std::nullopt;
  const Sizes of = indices.sizes();
  std::vector<int64_t> shape(of.begin(), of.end());
  shape.push_back(weight.size(1));
  Tensor y = empty_contiguous(weight, Sizes(shape.data(), shape.size()), weight.scalar_type());
  if (y.numel() == 0) return y;
  const Tensor table = with_unit_columns(weight), at = dense(indices);
  GatherArgs args = gather_args(table, y, at, 0);
  args.x_row = step(table, 0);
  args.scale = static_cast<float>(scale);
  args.scaled = scale != 1.0;
  return serve(call, args, weight) ? std::optional(y) : std::nullopt;
}

std::optional<Tensor> index_select(const Call& call, const Tensor& x, int64_t dim, const Tensor& index) {
  constexpr const char* kOp = "index_select";
  if (x.dim() == 0) fail(kOp, "expected at least 1 dimension in x, got shape ()");
  const int64_t at = check_dim(kOp, x, dim);
  check_index(kOp, index, x, "x");
  if (!has_kernel(call, x, kernel_dtype(x.scalar_type()).has_value())) return std::nullopt;
  const Sizes of = x.sizes();
  std::vector<int64_t> shape(of.begin(), of.end());
  shape[static_cast<size_t>(at)] = index.numel();
  Tensor y = empty_contiguous(x, Sizes(shape.data(), shape.size()), x.scalar_type());
  if (y.numel() == 0) return y;
  const Tensor rows = dense(x), indices = dense(index);
  return serve(call, gather_args(rows, y, indices, at), x) ? std::optional(y) : std::nullopt;
}

std::optional<Tensor> gather_rows(const Call& call, const Tensor& x, const Tensor& index) {
  constexpr const char* kOp = "gather_rows";
  if (x.dim() == 0) fail(kOp, "expected at least 1 dimension in x, got shape ()");
  check_index(kOp, index, x, "x");
  if (!has_kernel(call, x, kernel_dtype(x.scalar_type()).has_value())) return std::nullopt;
  const Sizes of = x.sizes();
  std::vector<int64_t> shape(of.begin(), of.end());
  shape[0] = index.numel();
  Tensor y = empty_contiguous(x, Sizes(shape.data(), shape.size()), x.scalar_type());
  if (y.numel() == 0) return y;
  const Tensor rows = dense(x), indices = dense(index);
  GatherArgs args = gather_args(rows, y, indices, 0);
  args.zeros = true;
  return serve(call, args, x) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&embedding>(m, "embedding");
  bind<&index_select>(m, "index_select");
  bind<&gather_rows>(m, "gather_rows");
}

}  // namespace
}  // namespace warpsmith
