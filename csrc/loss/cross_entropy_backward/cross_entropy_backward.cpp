// Cross-entropy backward, into new memory or over the logits: checks, allocation, the choice of the rung.
#include "loss/cross_entropy_backward/cross_entropy_backward.h"

#include "host/ladder.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cross_entropy_backward";
const Ladder<CrossEntropyBackwardArgs> ladder{kOp};

// What a call is given besides its place for the gradient.
struct Call {
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

  // `rows` are the logits, or a copy of them. False where no rung takes the call.
  bool launch(const CrossEntropyInput& in, void* dlogits, int64_t dlogits_stride, const std::string* rung) const {
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
    const int device = logits.get_device_index();
    const int sm = device_info(device).sm;
    const cudaStream_t stream = current_stream(device);
    if (rung != nullptr) {
      Ladder<CrossEntropyBackwardArgs>::run_named(kOp, *rung, args, sm, stream);
      return true;
    }
    const Rung<CrossEntropyBackwardArgs>* best = Ladder<CrossEntropyBackwardArgs>::choose(args, sm);
    if (best != nullptr) Ladder<CrossEntropyBackwardArgs>::run(*best, args, stream);
    return best != nullptr;
  }
};

Tensor run(const Call& call, const std::string* rung) {
  call.check();
  if (!has_float_kernel(call.logits)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(call.logits.scalar_type()));
    return call.fall_back();
  }
  Tensor dlogits = empty_contiguous(call.logits, call.logits.sizes(), call.logits.scalar_type());
  if (dlogits.numel() == 0) return dlogits;
  const DeviceScope scope(call.logits.get_device_index());
  Tensor rows = call.logits;
  const auto in = cross_entropy_input(rows, call.target, call.ignore_index, call.label_smoothing, call.z_loss);
  return call.launch(in, dlogits.data_ptr(), in.cols, rung) ? dlogits : call.fall_back();
}

Tensor cross_entropy_backward(const Tensor& logits, const Tensor& target, const Tensor& lse, const Tensor& grad_loss,
                              const Tensor& grad_lse, int64_t ignore_index, double label_smoothing, double z_loss) {
  return run({logits, target, lse, grad_loss, grad_lse, ignore_index, label_smoothing, z_loss}, nullptr);
}

Tensor cross_entropy_backward_rung(const Tensor& logits, const Tensor& target, const Tensor& lse,
                                   const Tensor& grad_loss, const Tensor& grad_lse, int64_t ignore_index,
                                   double label_smoothing, double z_loss, std::string rung, std::string) {
  return run({logits, target, lse, grad_loss, grad_lse, ignore_index, label_smoothing, z_loss}, &rung);
}

// The gradient takes the place of the logits; where these have no rows to work on, by way of a copy.
void cross_entropy_backward_(Tensor logits, const Tensor& target, const Tensor& lse, const Tensor& grad_loss,
                             const Tensor& grad_lse, int64_t ignore_index, double label_smoothing, double z_loss) {
  const Call call{logits, target, lse, grad_loss, grad_lse, ignore_index, label_smoothing, z_loss};
  call.check();
  check_rows_apart(kOp, logits);
  if (logits.numel() == 0) return;
  const DeviceScope scope(logits.get_device_index());
  if (has_float_kernel(logits)) {
    Tensor rows = logits;
    const auto in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss);
    if (call.launch(in, rows.data_ptr(), in.logits_stride, nullptr)) {
      if (rows.data_ptr() != logits.data_ptr()) torch::stable::copy_(logits, rows);
      return;
    }
  }
  torch::stable::copy_(logits, call.fall_back());
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward));
  m.impl("cross_entropy_backward.rung", TORCH_BOX(&cross_entropy_backward_rung));
  m.impl("cross_entropy_backward_", TORCH_BOX(&cross_entropy_backward_));
}

}  // namespace
}  // namespace warpsmith
