// Scaled products of 8-bit matrices: checks, allocation, the choice of the rung.
#include "gemm/scaled_matmul/scaled_matmul.h"

#include <string>
#include <utility>

#include "gemm/operands.h"
#include "gemm/scaled_matmul/wgmma_plan.h"
#include "host/into.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "scaled_matmul";
const Ladder<ScaledMatmulArgs> ladder{kOp};

void check_matrix(std::string_view name, const Tensor& x) {
  const std::optional<Dtype> dtype = kernel_dtype(x.scalar_type());
  const bool narrow = dtype && (is_fp8(*dtype) || *dtype == Dtype::i8);
  if (!narrow && x.scalar_type() != ScalarType::Double) {
    fail(kOp, "expected ", name, " to be an fp8 or int8 tensor, got ", dtype_name(x.scalar_type()));
  }
  if (x.dim() != 2) fail(kOp, "expected ", name, " to be 2-D, got shape ", shape_text(x.sizes()));
}

// `rows`, `cols`: of scales of blocks. `each`: values of which each may have a scale.
Scales check_scale(std::string_view name, const Tensor& scale, ScalarType type, const Tensor& a, int64_t each,
                   int64_t rows, int64_t cols, const char* of, const char* of_block) {
  check_device_like(kOp, name, scale, a, "a");
  if (scale.scalar_type() != type) {
    fail(kOp, "expected ", name, " to have dtype ", dtype_name(type), ", got ", dtype_name(scale.scalar_type()));
  }
  const int64_t rank = scale.dim();
  const bool fits = rank == 0 || (rank == 1 && scale.size(0) == each) ||
                    (rank == 2 && scale.size(0) == rows && scale.size(1) == cols);
  if (!fits) {
    fail(kOp, "expected ", name, " to have shape () or (", std::to_string(each), ",), one value per ", of, ", or (",
         std::to_string(rows), ", ", std::to_string(cols), "), one per ", of_block, ", got ",
         shape_text(scale.sizes()));
  }
  return {static_cast<const float*>(scale.data_ptr()), rank > 0 ? scale.stride(0) : 0, rank > 1 ? scale.stride(1) : 0};
}

void check_scale_of_result(const Tensor& scale, ScalarType type, const Tensor& a, ScalarType out) {
  check_device_like(kOp, "scale_result", scale, a, "a");
  if (scale.scalar_type() != type) {
    fail(kOp, "expected scale_result to have dtype ", dtype_name(type), ", got ", dtype_name(scale.scalar_type()));
  }
  if (scale.dim() != 0) fail(kOp, "expected scale_result to have shape (), got ", shape_text(scale.sizes()));
  if (out != ScalarType::Float8_e4m3fn && out != ScalarType::Float8_e5m2) {
    fail(kOp, "expected no scale_result beside results of ", dtype_name(out));
  }
}

ScalarType out_type(const std::string& name) {
  if (name == "f16") return ScalarType::Half;
  if (name == "bf16") return ScalarType::BFloat16;
  if (name == "f32") return ScalarType::Float;
  if (name == "e4m3") return ScalarType::Float8_e4m3fn;
  if (name == "e5m2") return ScalarType::Float8_e5m2;
  fail(kOp, "expected out_dtype to be 'f16', 'bf16', 'f32', 'e4m3' or 'e5m2', got '", name, "'");
}

std::optional<Tensor> run(const CallInto& call, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                          const Tensor& scale_b, const std::string& out_dtype, bool fast_accum,
                          const std::optional<Tensor>& scale_result) {
  check_matrix("a", a);
  check_matrix("b", b);
  check_device_like(kOp, "b", b, a, "a");
  const auto fp8 = [](const Tensor& x) {
    const std::optional<Dtype> dtype = kernel_dtype(x.scalar_type());
    return dtype && is_fp8(*dtype);
  };
  if (b.scalar_type() != a.scalar_type() && !(fp8(a) && fp8(b))) {
    fail(kOp, "expected b to have dtype ", dtype_name(a.scalar_type()), " like a, got ", dtype_name(b.scalar_type()));
  }
  if (a.size(1) != b.size(0)) {
    fail(kOp, "cannot multiply shapes ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  }
  const bool wide = a.scalar_type() == ScalarType::Double || scale_a.scalar_type() == ScalarType::Double;
  const ScalarType scale_type = wide ? ScalarType::Double : ScalarType::Float;
  const int64_t deep = ceil_div(a.size(1), kScaleBlock), across = ceil_div(b.size(1), kScaleBlock);
  const Scales scales_a = check_scale("scale_a", scale_a, scale_type, a, a.size(0), a.size(0), deep, "row of a",
                                      "row of a and 128 values of k");
  Scales scales_b =
      check_scale("scale_b", scale_b, scale_type, a, b.size(1), deep, across, "column of b", "128 x 128 values of b");
  const bool blocks = scale_a.dim() == 2;
  if (blocks != (scale_b.dim() == 2)) fail(kOp, "expected scales of blocks for both of a and b or for neither");
  if (blocks) std::swap(scales_b.step, scales_b.step_k);
  const ScalarType type = out_type(out_dtype);
  if (scale_result) check_scale_of_result(*scale_result, scale_type, a, type);
  if (wide) {
    if (call.named != nullptr) fail(kOp, "no rung takes torch.float64");
    return std::nullopt;
  }
  const int64_t shape[2] = {a.size(0), b.size(1)};
  Tensor d = result(call, a, Sizes(shape, 2), type);
  if (d.numel() == 0) return d;
  if (a.size(1) == 0) {
    check_named_of_nothing<ScaledMatmulArgs>(call, a);
    torch::stable::zero_(d);
    return d;
  }

  const DeviceInfo& info = device_info(a.get_device_index());
  Batch batch;
  Tensor dense_a = a, dense_b = b;
  ScaledMatmulArgs args{
      .a = as_matrices(dense_a, Reading::left, batch),
      .b = as_matrices(dense_b, Reading::right, batch),
      .scale_a = scales_a,
      .scale_b = scales_b,
      .scale_result = scale_result ? static_cast<const float*>(scale_result->data_ptr()) : nullptr,
      .d = d.data_ptr(),
      .m = a.size(0),
      .n = b.size(1),
      .k = a.size(1),
      .dtype = *kernel_dtype(a.scalar_type()),
      .dtype_b = *kernel_dtype(b.scalar_type()),
      .out = *kernel_dtype(type),
      .blocks = blocks,
      .fast_accum = fast_accum && !blocks,  // those are added one by one
      .sm = info.sm,
      .sm_count = info.sm_count,
  };
  Tensor workspace;
  if (const int64_t bytes = scaled_workspace_bytes(args); bytes > 0) {
    const int64_t sums = bytes / static_cast<int64_t>(sizeof(float));
    workspace = empty_contiguous(d, Sizes(&sums, 1), ScalarType::Float);
    args.workspace = workspace.data_ptr();
  }
  return serve(call, args, d) ? std::optional(d) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into_unless_elsewhere<&run>(m, kOp); }
STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) { define_elsewhere(m, "scaled_matmul"); }
STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) { implement_elsewhere(m, "scaled_matmul"); }

}  // namespace
}  // namespace warpsmith
