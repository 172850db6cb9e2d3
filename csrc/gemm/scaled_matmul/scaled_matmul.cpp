// Scaled products of 8-bit matrices: checks, allocation, the choice of the rung.
#include "gemm/scaled_matmul/scaled_matmul.h"

#include <string>

#include "gemm/operands.h"
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

void check_scale(std::string_view name, const Tensor& scale, ScalarType type, const Tensor& a, int64_t count,
                 const char* of) {
  check_device_like(kOp, name, scale, a, "a");
  if (scale.scalar_type() != type) {
    fail(kOp, "expected ", name, " to have dtype ", dtype_name(type), ", got ", dtype_name(scale.scalar_type()));
  }
  const bool one = scale.dim() == 0, each = scale.dim() == 1 && scale.size(0) == count;
  if (!one && !each) {
    fail(kOp, "expected ", name, " to have shape () or (", std::to_string(count), ",), one value per ", of, ", got ",
         shape_text(scale.sizes()));
  }
}

ScalarType out_type(const std::string& name) {
  if (name == "f16") return ScalarType::Half;
  if (name == "bf16") return ScalarType::BFloat16;
  fail(kOp, "expected out_dtype to be 'f16' or 'bf16', got '", name, "'");
}

std::optional<Tensor> run(const Call& call, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                          const Tensor& scale_b, const std::string& out_dtype) {
  check_matrix("a", a);
  check_matrix("b", b);
  check_device_like(kOp, "b", b, a, "a");
  if (b.scalar_type() != a.scalar_type()) {
    fail(kOp, "expected b to have dtype ", dtype_name(a.scalar_type()), " like a, got ", dtype_name(b.scalar_type()));
  }
  if (a.size(1) != b.size(0)) {
    fail(kOp, "cannot multiply shapes ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  }
  const bool wide = a.scalar_type() == ScalarType::Double || scale_a.scalar_type() == ScalarType::Double;
  const ScalarType scale_type = wide ? ScalarType::Double : ScalarType::Float;
  check_scale("scale_a", scale_a, scale_type, a, a.size(0), "row of a");
  check_scale("scale_b", scale_b, scale_type, a, b.size(1), "column of b");
  const ScalarType type = out_type(out_dtype);
  if (wide) {
    if (call.named != nullptr) fail(kOp, "no rung takes torch.float64");
    return std::nullopt;
  }
  const int64_t shape[2] = {a.size(0), b.size(1)};
  Tensor d = empty_contiguous(a, Sizes(shape, 2), type);
  if (d.numel() == 0) return d;
  if (a.size(1) == 0) {
    check_named_of_nothing<ScaledMatmulArgs>(call, a);
    torch::stable::zero_(d);
    return d;
  }

  const DeviceInfo& info = device_info(a.get_device_index());
  Batch batch;
  Tensor dense_a = a, dense_b = b;
  const Tensor scales_a = dense(scale_a), scales_b = dense(scale_b);
  const ScaledMatmulArgs args{
      .a = as_matrices(dense_a, Reading::left, batch),
      .b = as_matrices(dense_b, Reading::right, batch),
      .scale_a = static_cast<const float*>(scales_a.data_ptr()),
      .scale_b = static_cast<const float*>(scales_b.data_ptr()),
      .scale_a_step = scale_a.dim(),
      .scale_b_step = scale_b.dim(),
      .d = d.data_ptr(),
      .m = a.size(0),
      .n = b.size(1),
      .k = a.size(1),
      .dtype = *kernel_dtype(a.scalar_type()),
      .out = type == ScalarType::Half ? Dtype::f16 : Dtype::bf16,
      .sm = info.sm,
      .sm_count = info.sm_count,
  };
  return serve(call, args, d) ? std::optional(d) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
