// glu: checks, allocation, the choice of the rung.
#include "elementwise/glu/glu.h"

#include <vector>

#include "elementwise/glu/halves.h"
#include "host/ladder.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "glu";
const Ladder<GluArgs> ladder{kOp};

Tensor run(const Tensor& x, int64_t dim, const std::string* rung) {
  check_floating(kOp, "x", x);
  const Halves halves = halves_along(kOp, x, dim);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::glu", x, dim);
  }
  const Sizes sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape[halves.at] /= 2;
  Tensor y = empty_contiguous(x, Sizes(shape.data(), shape.size()), x.scalar_type());
  if (y.numel() == 0) return y;

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const Tensor dense_x = *dense(x);
  const GluArgs args{
      .x = dense_x.data_ptr(),
      .y = y.data_ptr(),
      .outer = halves.outer,
      .inner = halves.inner,
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<GluArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<GluArgs>::choose(args, sm)) {
    Ladder<GluArgs>::run(*best, args, stream);
  } else {
    return call_fallback<Tensor>("warpsmith::glu", x, dim);
  }
  return y;
}

Tensor glu(const Tensor& x, int64_t dim) { return run(x, dim, nullptr); }

Tensor glu_rung(const Tensor& x, int64_t dim, std::string rung, std::string) { return run(x, dim, &rung); }

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("glu", TORCH_BOX(&glu));
  m.impl("glu.rung", TORCH_BOX(&glu_rung));
}

}  // namespace
}  // namespace warpsmith
