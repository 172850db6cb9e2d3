// Softmax and log_softmax: checks, allocation, the choice of the rung.
#include "softmax/softmax/softmax.h"

#include <optional>

#include "host/ladder.h"
#include "row/operands.h"
#include "softmax/slices.h"

namespace warpsmith {
namespace {

const Ladder<SoftmaxArgs> ladder{"softmax"};

// The two operators of the ladder.
struct Softmax {
  static constexpr const char *name = "softmax", *full_name = "warpsmith::softmax";
  static constexpr bool log = false;
};

struct LogSoftmax {
  static constexpr const char *name = "log_softmax", *full_name = "warpsmith::log_softmax";
  static constexpr bool log = true;
};

// `rung` null: the ladder's own choice.
template <class Op>
Tensor run(const Tensor& x, int64_t dim, const std::string* rung) {
  check_floating(Op::name, "x", x);
  const int64_t along = check_dim(Op::name, x, dim);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(Op::name, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>(Op::full_name, x, dim);
  }
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (y.numel() == 0) return y;

  const int device = x.get_device_index();
  const DeviceScope scope(device);
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
      .log = Op::log,
  };
  std::optional<Tensor> workspace;
  if (const int64_t words = workspace_words(args, rung != nullptr ? *rung : "")) {
    workspace = empty_words(x, words);
    args.workspace = workspace->data_ptr();
  }
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<SoftmaxArgs>::run_named(Op::name, *rung, args, sm, stream);
  } else {
    const Rung<SoftmaxArgs>* best = Ladder<SoftmaxArgs>::choose(args, sm);
    if (best == nullptr) return call_fallback<Tensor>(Op::full_name, x, dim);
    Ladder<SoftmaxArgs>::run(*best, args, stream);
  }
  return y;
}

Tensor softmax(const Tensor& x, int64_t dim) { return run<Softmax>(x, dim, nullptr); }

Tensor softmax_rung(const Tensor& x, int64_t dim, std::string rung, std::string) { return run<Softmax>(x, dim, &rung); }

Tensor log_softmax(const Tensor& x, int64_t dim) { return run<LogSoftmax>(x, dim, nullptr); }

Tensor log_softmax_rung(const Tensor& x, int64_t dim, std::string rung, std::string) {
  return run<LogSoftmax>(x, dim, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("softmax", TORCH_BOX(&softmax));
  m.impl("softmax.rung", TORCH_BOX(&softmax_rung));
  m.impl("log_softmax", TORCH_BOX(&log_softmax));
  m.impl("log_softmax.rung", TORCH_BOX(&log_softmax_rung));
}

}  // namespace
}  // namespace warpsmith
