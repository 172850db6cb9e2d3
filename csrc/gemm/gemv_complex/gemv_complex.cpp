// Complex GEMV: checks, allocation, the choice of the rung.
#include "gemm/gemv_complex/gemv_complex.h"

#include "gemm/vectors.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "gemv_complex";
const Ladder<GemvComplexArgs> ladder{kOp};

void check(const Tensor& a, const Tensor& x) {
  check_wide_floating(kOp, "a", a);
  if (a.dim() != 3 || a.size(2) != 2) {
    fail(kOp, "expected a to have shape (m, k, 2), got shape ", shape_text(a.sizes()));
  }
  check_device_like(kOp, "x", x, a, "a");
  check_same_dtype_as_a(kOp, x, a);
  const int64_t k = a.size(1), dims = x.dim();
  if ((dims != 2 && dims != 3) || x.size(dims - 1) != 2 || x.size(dims - 2) != k) {
    const std::string wanted = std::to_string(k);
    fail(kOp, "expected x to have shape (", wanted, ", 2) or (vectors, ", wanted, ", 2), got shape ",
         shape_text(x.sizes()));
  }
  if (dims == 3 && x.size(0) > kMostVectors) {
    fail(kOp, "expected x to have at most ", std::to_string(kMostVectors), " vectors, got ", std::to_string(x.size(0)));
  }
}

std::optional<Tensor> run(const CallInto& call, const Tensor& a, const Tensor& x) {
  check(a, x);
  if (!has_kernel(call, a)) return std::nullopt;
  const bool one = x.dim() == 2;
  const int64_t sizes[3] = {one ? 1 : x.size(0), a.size(0), 2};
  Tensor y = result(call, a, one ? Sizes(sizes + 1, 2) : Sizes(sizes, 3), a.scalar_type());
  if (y.numel() == 0) return y;
  if (a.size(1) == 0) {
    torch::stable::zero_(y);
    return y;
  }

  Tensor values = dense(x);
  if (!is_aligned(values.data_ptr(), 16)) values = torch::stable::clone(values);
  const GemvComplexArgs args{
      .a = a.data_ptr(),
      .x = values.data_ptr(),
      .y = y.data_ptr(),
      .m = a.size(0),
      .k = a.size(1),
      .vectors = static_cast<int>(sizes[0]),
      .a_row = a.stride(0),
      .a_col = a.stride(1),
      .a_part = a.stride(2),
      .dtype = *kernel_dtype(a.scalar_type()),
  };
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
