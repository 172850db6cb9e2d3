// glu_backward: checks, allocation, the choice of the rung.
#include "elementwise/glu_backward/glu_backward.h"

#include <algorithm>
#include <vector>

#include "elementwise/glu/halves.h"
#include "host/ladder.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "glu_backward";
const Ladder<GluBackwardArgs> ladder{kOp};

Halves check(const Tensor& grad, const Tensor& x, int64_t dim) {
  check_floating(kOp, "x", x);
  const Halves halves = halves_along(kOp, x, dim);
  check_same_device(kOp, "grad", grad, x);
  check_same_dtype(kOp, "grad", grad, x);
  const Sizes sizes = x.sizes(), got = grad.sizes();
  std::vector<int64_t> wanted(sizes.begin(), sizes.end());
  wanted[halves.at] /= 2;
  if (!std::equal(wanted.begin(), wanted.end(), got.begin(), got.end())) {
    fail(kOp, "expected grad to have shape ", shape_text(Sizes(wanted.data(), wanted.size())), ", half of x, got ",
         shape_text(got));
  }
  return halves;
}

Tensor run(const Tensor& grad, const Tensor& x, int64_t dim, const std::string* rung) {
  const Halves halves = check(grad, x, dim);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::glu_backward", grad, x, dim);
  }
  Tensor dx = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (dx.numel() == 0) return dx;

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const Tensor dense_grad = *dense(grad), dense_x = *dense(x);
  const GluBackwardArgs args{
      .grad = dense_grad.data_ptr(),
      .x = dense_x.data_ptr(),
      .dx = dx.data_ptr(),
      .outer = halves.outer,
      .inner = halves.inner,
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<GluBackwardArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<GluBackwardArgs>::choose(args, sm)) {
    Ladder<GluBackwardArgs>::run(*best, args, stream);
  } else {
    return call_fallback<Tensor>("warpsmith::glu_backward", grad, x, dim);
  }
  return dx;
}

Tensor glu_backward(const Tensor& grad, const Tensor& x, int64_t dim) { return run(grad, x, dim, nullptr); }

Tensor glu_backward_rung(const Tensor& grad, const Tensor& x, int64_t dim, std::string rung, std::string) {
  return run(grad, x, dim, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("glu_backward", TORCH_BOX(&glu_backward));
  m.impl("glu_backward.rung", TORCH_BOX(&glu_backward_rung));
}

}  // namespace
}  // namespace warpsmith
