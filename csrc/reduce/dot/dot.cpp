// Dot product: checks, result, workspace, the choice of the rung.
#include "reduce/dot/dot.h"

#include <torch/csrc/stable/ops.h>

#include "host/checks.h"
#include "host/ladder.h"
#include "host/named.h"
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

Tensor run(const Tensor& x, const Tensor& y, const Named* named) {
  check(x, y);
  if (!has_float_kernel(x)) {
    if (named != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::dot", x, y);
  }
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const Dtype accumulator = named != nullptr ? accumulator_of(kOp, *named, dtype) : Dtype::f32;
  Tensor out = empty_contiguous(x, Sizes(), x.scalar_type());
  const int64_t n = x.numel();
  if (n == 0) {
    torch::stable::zero_(out);
    return out;
  }

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  const Tensor dense_x = x.is_contiguous() ? x : torch::stable::contiguous(x);
  const Tensor dense_y = y.is_contiguous() ? y : torch::stable::contiguous(y);
  const int64_t bytes = std::max(
      {OnePass<2>::workspace_bytes(info.sm_count), TwoPass<2>::workspace_bytes(info.sm_count), dot_workspace_bytes(n)});
  const Tensor workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
  const DotArgs args{
      .x = dense_x.data_ptr(),
      .y = dense_y.data_ptr(),
      .out = out.data_ptr(),
      .workspace = workspace.data_ptr(),
      .n = n,
      .sm_count = info.sm_count,
      .dtype = dtype,
      .accumulator = accumulator,
  };
  const cudaStream_t stream = current_stream(device);
  if (named != nullptr) {
    Ladder<DotArgs>::run_named(kOp, named->rung, args, info.sm, stream);
  } else {
    const Rung<DotArgs>* best = Ladder<DotArgs>::choose(args, info.sm);
    if (best == nullptr) return call_fallback<Tensor>("warpsmith::dot", x, y);
    Ladder<DotArgs>::run(*best, args, stream);
  }
  return out;
}

Tensor dot(const Tensor& x, const Tensor& y) { return run(x, y, nullptr); }

Tensor dot_rung(const Tensor& x, const Tensor& y, std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run(x, y, &named);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("dot", TORCH_BOX(&dot));
  m.impl("dot.rung", TORCH_BOX(&dot_rung));
}

}  // namespace
}  // namespace warpsmith
