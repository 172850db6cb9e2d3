// glu_backward: checks, allocation, the choice of the rung.
#include "elementwise/glu/backward/glu_backward.h"

#include <algorithm>
#include <vector>

#include "elementwise/glu/halves.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "glu_backward";
const Ladder<GluBackwardArgs> ladder{"glu/backward"};

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

std::optional<Tensor> run(const Call& call, const Tensor& grad, const Tensor& x, int64_t dim) {
  const Halves halves = check(grad, x, dim);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor dx = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (dx.numel() == 0) return dx;

  const Tensor dense_grad = dense(grad), dense_x = dense(x);
  const GluBackwardArgs args{
      .grad = dense_grad.data_ptr(),
      .x = dense_x.data_ptr(),
      .dx = dx.data_ptr(),
      .outer = halves.outer,
      .inner = halves.inner,
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  return serve(call, args, dx) ? std::optional(dx) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
