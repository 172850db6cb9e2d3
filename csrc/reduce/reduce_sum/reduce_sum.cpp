// Sum of all elements: result, workspace, the choice of the rung.
#include "reduce/reduce_sum/reduce_sum.h"

#include <torch/csrc/stable/ops.h>

#include "host/named_of_nothing.h"
#include "host/serve.h"

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

std::optional<Tensor> run(const Call& call, const Tensor& x) {
  const std::optional<Dtype> dtype = kernel_dtype(x.scalar_type());
  if (!has_kernel(call, x, dtype.has_value())) return std::nullopt;
  const Named* named = call.named;
  const Accumulator accumulator = named != nullptr ? accumulator_of(*named, *dtype) : Accumulator::wide;
  Tensor y = empty_contiguous(x, Sizes(), result_type(x.scalar_type()));
  const int64_t n = x.numel();
  if (n == 0) {
    check_named_of_nothing<ReduceSumArgs>(call, x);
    torch::stable::zero_(y);
    return y;
  }

  const int sm_count = device_info(x.get_device_index()).sm_count;
  // The order of dimensions does not matter to a sum, gaps and overlaps do.
  const Tensor input = is_dense(x) ? x : torch::stable::contiguous(x);
  int64_t bytes = std::max(OnePass<1>::workspace_bytes(sm_count), TwoPass<1>::workspace_bytes(sm_count));
  if (named != nullptr) bytes = std::max(bytes, climb_workspace_bytes(n));  // nothing else is chosen to climb
  const Tensor workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
  const ReduceSumArgs args{
      .x = input.data_ptr(),
      .y = y.data_ptr(),
      .workspace = workspace.data_ptr(),
      .n = n,
      .sm_count = sm_count,
      .dtype = *dtype,
      .accumulator = accumulator,
  };
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
