// Sum of all elements: result, workspace, the choice of the rung.
#include "reduce/reduce_sum/reduce_sum.h"

#include <torch/csrc/stable/ops.h>

#include "host/ladder.h"
#include "host/named.h"
#include "host/tensor.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "reduce_sum";
const Ladder<ReduceSumArgs> ladder{kOp};

const char* wide_name(Dtype dtype) {
  if (dtype == Dtype::i8) return "i32";
  return dtype == Dtype::i32 ? "i64" : "f32";
}

Accumulator accumulator_of(const Named& named, Dtype dtype) {
  if (named.accumulator == wide_name(dtype)) return Accumulator::wide;
  if (named.accumulator == "f16" && (dtype == Dtype::f16 || is_fp8(dtype))) return Accumulator::f16;
  if (named.accumulator == "bf16" && dtype == Dtype::bf16) return Accumulator::bf16;
  fail(kOp, "no accumulator '", named.accumulator, "' for ", name_of(dtype));
}

ScalarType result_type(ScalarType type) {
  const Dtype dtype = *kernel_dtype(type);
  if (dtype == Dtype::i8 || dtype == Dtype::i32) return ScalarType::Long;
  return is_fp8(dtype) ? ScalarType::Float : type;
}

Tensor run(const Tensor& x, const Named* named) {
  const std::optional<Dtype> dtype = kernel_dtype(x.scalar_type());
  if (!dtype) {
    if (named != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::reduce_sum", x);
  }
  const Accumulator accumulator = named != nullptr ? accumulator_of(*named, *dtype) : Accumulator::wide;
  Tensor y = empty_contiguous(x, Sizes(), result_type(x.scalar_type()));
  const int64_t n = x.numel();
  if (n == 0) {
    torch::stable::zero_(y);
    return y;
  }

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  // The order of dimensions does not matter to a sum, gaps and overlaps do.
  const Tensor input = is_dense(x) ? x : torch::stable::contiguous(x);
  int64_t bytes = std::max(OnePass<1>::workspace_bytes(info.sm_count), TwoPass<1>::workspace_bytes(info.sm_count));
  if (named != nullptr) bytes = std::max(bytes, climb_workspace_bytes(n));  // nothing else is chosen to climb
  const Tensor workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
  const ReduceSumArgs args{
      .x = input.data_ptr(),
      .y = y.data_ptr(),
      .workspace = workspace.data_ptr(),
      .n = n,
      .sm_count = info.sm_count,
      .dtype = *dtype,
      .accumulator = accumulator,
  };
  const cudaStream_t stream = current_stream(device);
  if (named != nullptr) {
    Ladder<ReduceSumArgs>::run_named(kOp, named->rung, args, info.sm, stream);
  } else {
    const Rung<ReduceSumArgs>* best = Ladder<ReduceSumArgs>::choose(args, info.sm);
    if (best == nullptr) return call_fallback<Tensor>("warpsmith::reduce_sum", x);
    Ladder<ReduceSumArgs>::run(*best, args, stream);
  }
  return y;
}

Tensor reduce_sum(const Tensor& x) { return run(x, nullptr); }

Tensor reduce_sum_rung(const Tensor& x, std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run(x, &named);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("reduce_sum", TORCH_BOX(&reduce_sum));
  m.impl("reduce_sum.rung", TORCH_BOX(&reduce_sum_rung));
}

}  // namespace
}  // namespace warpsmith
