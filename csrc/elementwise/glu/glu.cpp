// glu: checks, allocation, the choice of the rung.
#include "elementwise/glu/glu.h"

#include <vector>

#include "elementwise/glu/halves.h"
#include "host/into.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "glu";
const Ladder<GluArgs> ladder{kOp};

std::optional<Tensor> run(const CallInto& call, const Tensor& x, int64_t dim) {
  check_floating(kOp, "x", x);
  const Halves halves = halves_along(kOp, x, dim);
  if (!has_kernel(call, x)) return std::nullopt;
  const Sizes sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape[halves.at] /= 2;
  Tensor y = result(call, x, Sizes(shape.data(), shape.size()), x.scalar_type());
  if (y.numel() == 0) return y;

  const Tensor dense_x = dense(x);
  const GluArgs args{
      .x = dense_x.data_ptr(),
      .y = y.data_ptr(),
      .outer = halves.outer,
      .inner = halves.inner,
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
