// add_noise: checks, allocation, the choice of the rung.
#include "vision/add_noise/add_noise.h"

#include <optional>

#include "host/serve.h"
#include "vision/check_steps.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "add_noise";
const Ladder<AddNoiseArgs> ladder{kOp};

std::optional<Tensor> run(const Call& call, const Tensor& x, const Tensor& noise, const Tensor& t,
                          const Tensor& table) {
  check_floating(kOp, "x", x);
  if (x.dim() == 0) fail(kOp, "expected at least 1 dimension in x, got shape ()");
  check_like(kOp, "noise", noise, x, "x");
  check_steps(kOp, t, x, "x");
  if (t.dim() != 1 || t.size(0) != x.size(0)) {
    fail(kOp, "expected t to have shape (", std::to_string(x.size(0)), ",), a step for each sample of x, got ",
         shape_text(t.sizes()));
  }
  check_device_like(kOp, "table", table, x, "x");
  if (table.dim() != 2 || table.size(1) != 2) {
    fail(kOp, "expected table to have shape (steps, 2), got ", shape_text(table.sizes()));
  }
  const ScalarType wanted = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (table.scalar_type() != wanted) {
    fail(kOp, "expected table to have dtype ", dtype_name(wanted), ", got ", dtype_name(table.scalar_type()));
  }
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (y.numel() == 0) return y;
  const Tensor dense_x = dense(x), dense_noise = dense(noise), dense_table = dense(table), steps = dense(t);
  const AddNoiseArgs args{
      .x = dense_x.data_ptr(),
      .noise = dense_noise.data_ptr(),
      .table = static_cast<const float*>(dense_table.data_ptr()),
      .t = {.at = steps.data_ptr(), .is_long = t.scalar_type() == ScalarType::Long, .limit = table.size(0)},
      .y = y.data_ptr(),
      .n = x.size(0),
      .inner = x.numel() / x.size(0),
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  return serve(call, args, x) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
