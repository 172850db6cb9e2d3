// Cross-entropy backward, into new memory or over the logits: checks, allocation, the choice of the rung.
#include "loss/cross_entropy/backward/cross_entropy_backward.h"

#include "host/serve.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cross_entropy_backward";
const Ladder<CrossEntropyBackwardArgs> ladder{"cross_entropy/backward"};

// The arguments of a call.
struct Request {
  const Tensor &logits, &target, &lse, &grad_loss, &grad_lse;
  int64_t ignore_index;
  double label_smoothing, z_loss;

  void check() const {
    check_cross_entropy(kOp, logits, target, label_smoothing);
    check_per_row(kOp, "lse", lse, logits);
    check_per_row(kOp, "grad_loss", grad_loss, logits);
    check_per_row(kOp, "grad_lse", grad_lse, logits);
  }

  Tensor fall_back() const {
    return call_fallback<Tensor>("warpsmith::cross_entropy_backward", logits, target, lse, grad_loss, grad_lse,
                                 ignore_index, label_smoothing, z_loss);
  }

  // False where no rung takes the call.
  bool launch(const Call& call, const CrossEntropyInput& in, void* dlogits, int64_t dlogits_stride) const {
    const CrossEntropyBackwardArgs args{
        .in = in,
        .lse = static_cast<const float*>(lse.data_ptr()),
        .grad_loss = static_cast<const float*>(grad_loss.data_ptr()),
        .grad_lse = static_cast<const float*>(grad_lse.data_ptr()),
        .dlogits = dlogits,
        .lse_stride = lse.strides()[0],
        .grad_loss_stride = grad_loss.strides()[0],
        .grad_lse_stride = grad_lse.strides()[0],
        .dlogits_stride = dlogits_stride,
    };
    return serve(call, args, logits);
  }
};

std::optional<Tensor> run(const Call& call, const Tensor& logits, const Tensor& target, const Tensor& lse,
                          const Tensor& grad_loss, const Tensor& grad_lse, int64_t ignore_index, double label_smoothing,
                          double z_loss) {
  const Request request{logits, target, lse, grad_loss, grad_lse, ignore_index, label_smoothing, z_loss};
  request.check();
  if (!has_kernel(call, logits)) return std::nullopt;
  Tensor dlogits = empty_contiguous(logits, logits.sizes(), logits.scalar_type());
  if (dlogits.numel() == 0) return dlogits;
  Tensor rows = logits;
  const auto in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss);
  return request.launch(call, in, dlogits.data_ptr(), in.cols) ? std::optional(dlogits) : std::nullopt;
}

// The gradient takes the place of the logits; where these have no rows to work on, by way of a copy.
void cross_entropy_backward_(Tensor logits, const Tensor& target, const Tensor& lse, const Tensor& grad_loss,
                             const Tensor& grad_lse, int64_t ignore_index, double label_smoothing, double z_loss) {
  const Request request{logits, target, lse, grad_loss, grad_lse, ignore_index, label_smoothing, z_loss};
  request.check();
  check_rows_apart(kOp, logits);
  if (logits.numel() == 0) return;
  if (has_float_kernel(logits)) {
    Tensor rows = logits;
    const auto in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss);
    if (request.launch({kOp}, in, rows.data_ptr(), in.logits_stride)) {
      if (rows.data_ptr() != logits.data_ptr()) torch::stable::copy_(logits, rows);
      return;
    }
  }
  torch::stable::copy_(logits, request.fall_back());
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&run>(m, kOp);
  m.impl("cross_entropy_backward_", TORCH_BOX(&cross_entropy_backward_));
}

}  // namespace
}  // namespace warpsmith
