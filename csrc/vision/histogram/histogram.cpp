// histogram: checks, allocation, the choice of the rung.
#include "vision/histogram/histogram.h"

#include <optional>

#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "histogram";
const Ladder<HistogramArgs> ladder{kOp};

void check(const Tensor& x, int64_t bins, const std::optional<Tensor>& edges) {
  const ScalarType type = x.scalar_type();
  if (type == ScalarType::ComplexHalf || type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble) {
    fail(kOp, "expected x to hold real numbers, got ", dtype_name(type));
  }
  if (bins < 1 || bins > kMostRows) fail(kOp, "expected bins to be from 1 to 2147483647, got ", std::to_string(bins));
  if (is_floating(type) != edges.has_value()) {
    fail(kOp, "expected edges for floating-point values and for no others, got x in ", dtype_name(type));
  }
  if (!edges) return;
  check_same_device(kOp, "edges", *edges, x);
  check_same_dtype(kOp, "edges", *edges, x);
  if (edges->dim() != 1 || edges->size(0) != bins + 1) {
    fail(kOp, "expected edges to have shape (", std::to_string(bins + 1), ",), one more than bins, got ",
         shape_text(edges->sizes()));
  }
}

std::optional<Tensor> run(const Call& call, const Tensor& x, int64_t bins, const std::optional<Tensor>& edges,
                          bool is_unsigned) {
  check(x, bins, edges);
  const auto dtype = kernel_dtype(x.scalar_type());
  if (!has_kernel(call, x, dtype == Dtype::f32 || dtype == Dtype::i32 || dtype == Dtype::i8)) return std::nullopt;
  Tensor counts = empty_contiguous(x, Sizes(&bins, 1), ScalarType::Long);
  torch::stable::zero_(counts);
  if (x.numel() == 0) return counts;
  const Tensor values = is_dense(x) ? x : torch::stable::contiguous(x);
  const std::optional<Tensor> dense_edges = dense(edges);
  const HistogramArgs args{
      .x = values.data_ptr(),
      .edges = dense_edges ? static_cast<const float*>(dense_edges->data_ptr()) : nullptr,
      .counts = static_cast<int64_t*>(counts.data_ptr()),
      .n = x.numel(),
      .bins = bins,
      .is_unsigned = is_unsigned,
      .dtype = *dtype,
  };
  return serve(call, args, x) ? std::optional(counts) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
