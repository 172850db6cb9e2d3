// embedding_backward, index_add, index_put and scatter_rows: checks, allocation, the sort of many indices, the choice of the
// rung.
#include "transform/accumulate/accumulate.h"

#include <array>
#include <tuple>
#include <vector>

#include "host/serve.h"
#include "host/share_memory.h"
#include "transform/index_operands.h"

namespace warpsmith {
namespace {

const Ladder<AccumulateArgs> ladder{"accumulate"};

// The indices in order, and where each one stood, those that are the same in their order.
std::tuple<Tensor, Tensor> stable_sort(const Tensor& index) {
  std::array<StableIValue, 4> stack{torch::stable::detail::from(index),
                                    torch::stable::detail::from(std::optional<bool>(true)),
                                    torch::stable::detail::from(int64_t{0}), torch::stable::detail::from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  return detail::Results<std::tuple<Tensor, Tensor>>::take(stack.data());
}

// y and source: along `dim`, in dense rows.
AccumulateArgs accumulate_args(const Tensor& y, const Tensor& source, const Tensor& index, int64_t dim) {
  const Sizes sizes = y.sizes();
  const int64_t inner = product(sizes, dim + 1, y.dim()), rows = sizes[static_cast<size_t>(dim)], count = index.numel();
  return {
      .y = y.data_ptr(),
      .source = source.data_ptr(),
      .index = index.data_ptr(),
      .keys = nullptr,
      .order = nullptr,
      .outer = product(sizes, 0, dim),
      .rows = rows,
      .count = count,
      .inner = inner,
      .y_outer = rows * inner,
      .y_row = inner,
      .source_outer = count * inner,
      .source_row = inner,
      .alpha = 1.0f,
      .left_out = -1,
      .adds = true,
      .replaces = false,
      .from_the_end = false,
      .drops = false,
      .deterministic = true,
      .wide = is_wide(index),
      .dtype = *kernel_dtype(y.scalar_type()),
  };
}

// Which row each index names that may count from the end: as int64, in which every row has a number.
Tensor from_the_start(const AccumulateArgs& args, const Tensor& index) {
  Tensor rows = empty_contiguous(index, index.sizes(), ScalarType::Long);
  const int device = index.get_device_index();
  const DeviceScope scope(device);
  count_from_the_start(args, static_cast<int64_t*>(rows.data_ptr()), current_stream(device));
  return rows;
}

bool serve_sorted(const Call& call, AccumulateArgs args, Tensor index, const Tensor& like) {
  const bool in_order = args.deterministic || !suits_atomics(args);
  const bool many = in_order && args.count > kMostScanned;
  if (call.named == nullptr ? !many : call.named->rung != "sorted") return serve(call, args, like);
  if (args.from_the_end) {  // the two indices of a row would not follow each other
    index = from_the_start(args, index);
    args.index = index.data_ptr();
    args.wide = true;
    args.from_the_end = false;
  }
  const auto [keys, order] = stable_sort(index);
  args.keys = keys.data_ptr();
  args.order = static_cast<const int64_t*>(order.data_ptr());
  return serve(call, args, like);
}

std::optional<Tensor> embedding_backward(const Call& call, const Tensor& grad, const Tensor& indices, int64_t rows,
                                         std::optional<int64_t> padding_idx, double scale, bool deterministic) {
  constexpr const char* kOp = "embedding_backward";
  check_floating(kOp, "grad", grad);
  check_index_dtype(kOp, "indices", indices, grad, "grad");
  const Sizes of = indices.sizes(), given = grad.sizes();
  if (given.size() != of.size() + 1 || !std::equal(of.begin(), of.end(), given.begin())) {
    fail(kOp, "expected grad to have the shape of indices, ", shape_text(of), ", and a dimension more, got ",
         shape_text(given));
  }
  if (rows < 0) fail(kOp, "expected rows to be at least 0, got ", std::to_string(rows));
  if (padding_idx && (*padding_idx < -rows || *padding_idx >= rows)) {
    fail(kOp, "expected padding_idx to be one of ", std::to_string(rows), " rows, got ", std::to_string(*padding_idx));
  }
  if (!has_kernel(call, grad)) return std::nullopt;
  const std::array<int64_t, 2> shape{rows, given[given.size() - 1]};
  Tensor y = empty_contiguous(grad, Sizes(shape.data(), shape.size()), grad.scalar_type());
  torch::stable::zero_(y);
  if (grad.numel() == 0) return y;
  const Tensor source = dense(grad), index = dense(indices);
  AccumulateArgs args = accumulate_args(y, source, index, 0);
  args.alpha = static_cast<float>(scale);
  args.adds = false;
  args.deterministic = deterministic;
  if (padding_idx) args.left_out = *padding_idx < 0 ? *padding_idx + rows : *padding_idx;
  // sorted as a vector, whatever shape they have
  const std::array<int64_t, 1> flat{index.numel()};
  const Tensor vector = torch::stable::view(index, flat);
  return serve_sorted(call, args, vector, grad) ? std::optional(y) : std::nullopt;
}

int64_t check_index_add(const char* op, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  check_floating(op, "x", x);
  if (x.dim() == 0) fail(op, "expected at least 1 dimension in x, got shape ()");
  const int64_t at = check_dim(op, x, dim);
  check_index(op, index, x, "x");
  check_device_like(op, "source", source, x, "x");
  if (source.scalar_type() != x.scalar_type()) {
    fail(op, "expected source to have dtype ", dtype_name(x.scalar_type()), " like x, got ",
         dtype_name(source.scalar_type()));
  }
  const Sizes of = x.sizes();
  std::vector<int64_t> shape(of.begin(), of.end());
  shape[static_cast<size_t>(at)] = index.numel();
  const Sizes wanted(shape.data(), shape.size()), given = source.sizes();
  if (given.size() != wanted.size() || !std::equal(given.begin(), given.end(), wanted.begin())) {
    fail(op, "expected source to have shape ", shape_text(wanted), ", that of x with a place for each index, got ",
         shape_text(given));
  }
  return at;
}

std::optional<Tensor> index_add(const Call& call, const Tensor& x, int64_t dim, const Tensor& index,
                                const Tensor& source, double alpha, bool deterministic) {
  constexpr const char* kOp = "index_add";
  const int64_t at = check_index_add(kOp, x, dim, index, source);
  if (!has_kernel(call, x)) return std::nullopt;
  const Tensor terms = dense(source), indices = dense(index);
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  torch::stable::copy_(y, x);
  if (source.numel() == 0) return y;
  AccumulateArgs args = accumulate_args(y, terms, indices, at);
  args.alpha = static_cast<float>(alpha);
  args.deterministic = deterministic;
  return serve_sorted(call, args, indices, x) ? std::optional(y) : std::nullopt;
}

bool index_add_inplace(const Call& call, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source,
                       double alpha, bool deterministic) {
  constexpr const char* kOp = "index_add_inplace";
  const int64_t at = check_index_add(kOp, x, dim, index, source);
  check_apart(kOp, "x", x);
  check_own_memory(kOp, "x", x, "source", source);
  if (!has_kernel(call, x)) return false;
  if (source.numel() == 0) return true;
  if (!x.is_contiguous()) {
    if (call.named != nullptr) fail(kOp, "rung '", call.named->rung, "' needs x to be contiguous");
    return false;
  }
  const Tensor terms = dense(source), indices = dense(index);
  AccumulateArgs args = accumulate_args(x, terms, indices, at);
  args.alpha = static_cast<float>(alpha);
  args.deterministic = deterministic;
  return serve_sorted(call, args, indices, x);
}

std::optional<Tensor> index_put(const Call& call, const Tensor& x, const Tensor& index, const Tensor& values,
                                bool accumulate, bool deterministic) {
  constexpr const char* kOp = "index_put";
  check_floating(kOp, "x", x);
  if (x.dim() == 0) fail(kOp, "expected at least 1 dimension in x, got shape ()");
  check_index(kOp, index, x, "x");
  check_device_like(kOp, "values", values, x, "x");
  if (values.scalar_type() != x.scalar_type()) {
    fail(kOp, "expected values to have dtype ", dtype_name(x.scalar_type()), " like x, got ",
         dtype_name(values.scalar_type()));
  }
  const Sizes of = x.sizes();
  std::vector<int64_t> shape(of.begin(), of.end());
  shape[0] = index.numel();
  const Sizes wanted(shape.data(), shape.size()), given = values.sizes();
  if (given.size() != wanted.size() || !std::equal(given.begin(), given.end(), wanted.begin())) {
    fail(kOp, "expected values to have shape ", shape_text(wanted), ", a row of x for each index, got ",
         shape_text(given));
  }
  if (!has_kernel(call, x)) return std::nullopt;
  const Tensor terms = dense(values), indices = dense(index);
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  torch::stable::copy_(y, x);
  if (values.numel() == 0) return y;
  AccumulateArgs args = accumulate_args(y, terms, indices, 0);
  args.replaces = !accumulate;
  args.adds = accumulate;
  args.from_the_end = true;
  args.deterministic = deterministic || !accumulate;
  return serve_sorted(call, args, indices, x) ? std::optional(y) : std::nullopt;
}

std::optional<Tensor> scatter_rows(const Call& call, const Tensor& x, const Tensor& index, int64_t rows,
                                   bool deterministic) {
  constexpr const char* kOp = "scatter_rows";
  check_floating(kOp, "x", x);
  if (x.dim() == 0) fail(kOp, "expected at least 1 dimension in x, got shape ()");
  check_index(kOp, index, x, "x");
  if (index.numel() != x.size(0)) {
    fail(kOp, "expected an index for each of ", std::to_string(x.size(0)), " rows of x, got ",
         std::to_string(index.numel()));
  }
  if (rows < 0) fail(kOp, "expected rows to be at least 0, got ", std::to_string(rows));
  if (!has_kernel(call, x)) return std::nullopt;
  const Sizes of = x.sizes();
  std::vector<int64_t> shape(of.begin(), of.end());
  shape[0] = rows;
  Tensor y = empty_contiguous(x, Sizes(shape.data(), shape.size()), x.scalar_type());
  torch::stable::zero_(y);
  if (x.numel() == 0) return y;
  const Tensor terms = dense(x), indices = dense(index);
  AccumulateArgs args = accumulate_args(y, terms, indices, 0);
  args.adds = false;
  args.drops = true;
  args.deterministic = deterministic;
  return serve_sorted(call, args, indices, x) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&embedding_backward>(m, "embedding_backward");
  bind<&index_add>(m, "index_add");
  bind<&index_add_inplace>(m, "index_add_inplace");
  bind<&index_put>(m, "index_put");
  bind<&scatter_rows>(m, "scatter_rows");
}

}  // namespace
}  // namespace warpsmith
