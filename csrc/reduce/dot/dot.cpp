// Dot product: checks, result, workspace, the choice of the rung.
#include "reduce/dot/dot.h"

#include <torch/csrc/stable/ops.h>

#include "host/named_of_nothing.h"
#include "host/serve.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "dot";
const Ladder<DotArgs> ladder{kOp};

void check(const Tensor& x, const Tensor& y) {
  check_wide_floating(kOp, "x", x);
  if (x.dim() != 1) fail(kOp, "expected x to be 1-D, got shape ", shape_text(x.sizes()));
  check_same_device(kOp, "y", y, x);
  check_same_dtype(kOp, "y", y, x);
  check_same_shape(kOp, "y", y, x);
}

std::optional<Tensor> run(const Call& call, const Tensor& x, const Tensor& y) {
  check(x, y);
  if (!has_kernel(call, x)) return std::nullopt;
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const Dtype accumulator = accumulator_of(call, dtype);
  Tensor out = empty_contiguous(x, Sizes(), x.scalar_type());
  const int64_t n = x.numel();
  if (n == 0) {
    check_named_of_nothing<DotArgs>(call, x);
    torch::stable::zero_(out);
    return out;
  }

  const int sm_count = device_info(x.get_device_index()).sm_count;
  const Tensor dense_x = dense(x), dense_y = dense(y);
  const int64_t bytes =
      std::max({OnePass<2>::workspace_bytes(sm_count), TwoPass<2>::workspace_bytes(sm_count), dot_workspace_bytes(n)});
  const Tensor workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
  const DotArgs args{
      .x = dense_x.data_ptr(),
      .y = dense_y.data_ptr(),
      .out = out.data_ptr(),
      .workspace = workspace.data_ptr(),
      .n = n,
      .sm_count = sm_count,
      .dtype = dtype,
      .accumulator = accumulator,
  };
  return serve(call, args, out) ? std::optional(out) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
