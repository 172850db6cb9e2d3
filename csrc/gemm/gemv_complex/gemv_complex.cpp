// Complex GEMV: checks, allocation, the choice of the rung.
#include "gemm/gemv_complex/gemv_complex.h"

#include "gemm/vectors.h"
#include "host/checks.h"
#include "host/ladder.h"

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

Tensor run(const Tensor& a, const Tensor& x, const std::string* rung) {
  check(a, x);
  if (!has_float_kernel(a)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(a.scalar_type()));
    return call_fallback<Tensor>("warpsmith::gemv_complex", a, x);
  }
  const bool one = x.dim() == 2;
  const int64_t sizes[3] = {one ? 1 : x.size(0), a.size(0), 2};
  Tensor y = empty_contiguous(a, one ? Sizes(sizes + 1, 2) : Sizes(sizes, 3), a.scalar_type());
  if (y.numel() == 0) return y;
  const int device = a.get_device_index();
  const DeviceScope scope(device);
  if (a.size(1) == 0) {
    torch::stable::zero_(y);
    return y;
  }

  Tensor values = x.is_contiguous() ? x : torch::stable::contiguous(x);
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
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<GemvComplexArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<GemvComplexArgs>::choose(args, sm)) {
    Ladder<GemvComplexArgs>::run(*best, args, stream);
  } else {
    return call_fallback<Tensor>("warpsmith::gemv_complex", a, x);
  }
  return y;
}

Tensor gemv_complex(const Tensor& a, const Tensor& x) { return run(a, x, nullptr); }

Tensor gemv_complex_rung(const Tensor& a, const Tensor& x, std::string rung, std::string) { return run(a, x, &rung); }

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("gemv_complex", TORCH_BOX(&gemv_complex));
  m.impl("gemv_complex.rung", TORCH_BOX(&gemv_complex_rung));
}

}  // namespace
}  // namespace warpsmith
