// Products of groups of fp8 values: checks, allocation, the choice of the rung.
#include "gemm/scaled_grouped_matmul/scaled_grouped_matmul.h"

#include <array>
#include <string>

#include "gemm/operands.h"
#include "host/into.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "scaled_grouped_matmul";
const Ladder<ScaledGroupedArgs> ladder{kOp};

void check_values(std::string_view name, const Tensor& x) {
  const std::optional<Dtype> dtype = kernel_dtype(x.scalar_type());
  if (!(dtype && is_fp8(*dtype)) && x.scalar_type() != ScalarType::Double) {
    fail(kOp, "expected ", name, " to be an fp8 tensor, got ", dtype_name(x.scalar_type()));
  }
}

void check_scale(std::string_view name, const Tensor& scale, ScalarType type, const Tensor& x, Sizes wanted,
                 const char* of) {
  check_device_like(kOp, name, scale, x, "x");
  if (scale.scalar_type() != type) {
    fail(kOp, "expected ", name, " to have dtype ", dtype_name(type), ", got ", dtype_name(scale.scalar_type()));
  }
  const Sizes sizes = scale.sizes();
  if (sizes.size() == wanted.size() && std::equal(sizes.begin(), sizes.end(), wanted.begin())) return;
  fail(kOp, "expected ", name, " to have shape ", shape_text(wanted), ", one value per ", of, ", got ",
       shape_text(sizes));
}

ScalarType out_type(const std::string& name) {
  if (name == "f16") return ScalarType::Half;
  if (name == "bf16") return ScalarType::BFloat16;
  if (name == "f32") return ScalarType::Float;
  fail(kOp, "expected out_dtype to be 'f16', 'bf16' or 'f32', got '", name, "'");
}

std::optional<Tensor> run(const CallInto& call, const Tensor& x, const Tensor& w, const Tensor& offsets,
                          const Tensor& scale_x, const Tensor& scale_w, const std::string& out_dtype, bool fast_accum) {
  check_values("x", x);
  if (x.dim() != 2) fail(kOp, "expected x to be 2-D, got shape ", shape_text(x.sizes()));
  check_values("w", w);
  if (w.dim() != 2 && w.dim() != 3) fail(kOp, "expected w to be 2-D or 3-D, got shape ", shape_text(w.sizes()));
  check_device_like(kOp, "w", w, x, "x");
  check_device_like(kOp, "offs", offsets, x, "x");
  if (offsets.scalar_type() != ScalarType::Int) {
    fail(kOp, "expected offs to have dtype torch.int32, got ", dtype_name(offsets.scalar_type()));
  }
  if (offsets.dim() != 1) fail(kOp, "expected offs to be 1-D, got shape ", shape_text(offsets.sizes()));
  const bool along_k = w.dim() == 2;
  if (x.size(1) != w.size(w.dim() - 2)) {
    fail(kOp, "cannot multiply shapes ", shape_text(x.sizes()), " and ", shape_text(w.sizes()));
  }
  const int64_t groups = offsets.size(0), m = x.size(0), k = x.size(1), n = w.size(w.dim() - 1);
  if (!along_k && w.size(0) != groups) {
    fail(kOp, "expected offs to have shape (", std::to_string(w.size(0)), ",), one end per matrix of w, got ",
         shape_text(offsets.sizes()));
  }
  const auto is_wide = [](const Tensor& t) { return t.scalar_type() == ScalarType::Double; };
  const bool wide = is_wide(x) || is_wide(w) || is_wide(scale_x);
  const ScalarType scale_type = wide ? ScalarType::Double : ScalarType::Float;
  const int64_t of_rows[2] = {groups, m}, of_columns[2] = {groups, n};
  if (along_k) {
    check_scale("scale_x", scale_x, scale_type, x, Sizes(of_rows, 2), "group and row of x");
    check_scale("scale_w", scale_w, scale_type, x, Sizes(of_columns, 2), "group and column of w");
  } else {
    check_scale("scale_x", scale_x, scale_type, x, Sizes(of_rows + 1, 1), "row of x");
    check_scale("scale_w", scale_w, scale_type, x, Sizes(of_columns, 2), "column of each matrix of w");
  }
  const ScalarType type = out_type(out_dtype);
  if (!has_kernel(call, wide ? scale_x : x, !wide)) return std::nullopt;

  const int64_t shape[3] = {groups, m, n};
  Tensor d = result(call, x, along_k ? Sizes(shape, 3) : Sizes(shape + 1, 2), type);
  if (d.numel() == 0 || groups == 0) return d;
  if (k == 0) {
    check_named_of_nothing<ScaledGroupedArgs>(call, x);
    torch::stable::zero_(d);
    return d;
  }

  Tensor dense_x = x, dense_w = w;
  const Tensor ends = dense(offsets);
  Batch batch;
  if (!along_k) batch = {.size = {groups}, .rank = 1};
  const DeviceInfo& info = device_info(x.get_device_index());
  const ScaledGroupedArgs args{
      .x = ordered(dense_x, Order::rows),
      .w = along_k ? ordered(dense_w, Order::columns) : as_matrices(dense_w, Reading::right, batch),
      .scale_x = static_cast<const float*>(scale_x.data_ptr()),
      .scale_w = static_cast<const float*>(scale_w.data_ptr()),
      .step_x = scale_x.stride(along_k ? 1 : 0),
      .step_w = scale_w.stride(1),
      .group_x = along_k ? scale_x.stride(0) : 0,
      .group_w = scale_w.stride(0),
      .d = d.data_ptr(),
      .groups = {static_cast<const int32_t*>(ends.data_ptr()), groups, along_k ? k : m},
      .m = m,
      .n = n,
      .k = k,
      .along_k = along_k,
      .dtype = *kernel_dtype(x.scalar_type()),
      .dtype_w = *kernel_dtype(w.scalar_type()),
      .out = *kernel_dtype(type),
      .fast_accum = fast_accum,
      .sm = info.sm,
      .sm_count = info.sm_count,
  };
  return serve(call, args, d) ? std::optional(d) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
