// Cumulative sums: checks, the layout, allocation, the choice of the rung.
#include "reduce/cumsum/cumsum.h"

#include <optional>

#include "host/serve.h"
#include "reduce/dims.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cumsum";
const Ladder<CumsumArgs> ladder{kOp};

bool is_summed(const Tensor& x) {
  const auto dtype = kernel_dtype(x.scalar_type());
  return dtype && !is_fp8(*dtype) && *dtype != Dtype::i8;
}

std::optional<Tensor> run(const Call& call, const Tensor& x, int64_t dim, bool reverse, bool batch_invariant) {
  check_real(kOp, x);
  const int64_t d = check_dim(kOp, x, dim);
  if (!has_kernel(call, x, is_summed(x))) return std::nullopt;
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  Tensor y = empty_contiguous(x, x.sizes(), dtype == Dtype::i32 ? ScalarType::Long : x.scalar_type());
  if (y.numel() == 0) return y;

  const DeviceScope scope(x.get_device_index());  // which the workspace is cut to
  Tensor input = x;
  const bool columns = batch_invariant ? d + 1 < x.dim() : AroundDim(x, d).inner.size != 1;
  const DimView view = view_by_shape(input, d, /*rows=*/!columns);
  CumsumArgs args{
      .x = input.data_ptr(),
      .y = y.data_ptr(),
      .workspace = nullptr,
      .outer = view.outer,
      .n = view.n,
      .inner = view.inner,
      .stride_outer = view.stride_outer,
      .stride_n = view.stride_n,
      .stride_inner = view.stride_inner,
      .columns = columns,
      .reverse = reverse,
      .batch_invariant = batch_invariant,
      .dtype = dtype,
  };
  std::optional<Tensor> workspace;
  const int64_t bytes = workspace_bytes(args, /*may_tile=*/call.named != nullptr || has_few_long_rows(args));
  if (bytes > 0) {
    workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
    args.workspace = workspace->data_ptr();
  }
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
