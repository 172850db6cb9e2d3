// Softmax and log_softmax: checks, allocation, the choice of the rung.
#include "softmax/softmax/softmax.h"

#include <optional>

#include "host/elsewhere.h"
#include "host/into.h"
#include "row/operands.h"
#include "softmax/slices.h"

namespace warpsmith {
namespace {

const Ladder<SoftmaxArgs> ladder{"softmax"};

template <bool log>
std::optional<Tensor> run(const CallInto& call, const Tensor& x, int64_t dim) {
  check_floating(call.op, "x", x);
  const int64_t along = check_dim(call.op, x, dim);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor y = result(call, x, x.sizes(), x.scalar_type());
  if (y.numel() == 0) return y;

  const DeviceScope scope(x.get_device_index());  // which the workspace is cut to
  Tensor input = x;
  const Slices slices = as_slices(input, along);
  SoftmaxArgs args{
      .x = input.data_ptr(),
      .y = y.data_ptr(),
      .workspace = nullptr,
      .rows = slices.outer * slices.inner,
      .cols = slices.cols,
      .inner = slices.inner,
      .x_stride = slices.stride,
      .col_stride = slices.col_stride,
      .dtype = *kernel_dtype(x.scalar_type()),
      .log = log,
  };
  std::optional<Tensor> workspace;
  if (const int64_t words = workspace_words(args, call.named != nullptr ? call.named->rung : "")) {
    workspace = empty_words(x, words);
    args.workspace = workspace->data_ptr();
  }
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into_unless_elsewhere<&run<false>>(m, "softmax");
  bind_into_unless_elsewhere<&run<true>>(m, "log_softmax");
}
STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) {
  define_elsewhere(m, "softmax");
  define_elsewhere(m, "log_softmax");
}
STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) {
  implement_elsewhere(m, "softmax");
  implement_elsewhere(m, "log_softmax");
}

}  // namespace
}  // namespace warpsmith
