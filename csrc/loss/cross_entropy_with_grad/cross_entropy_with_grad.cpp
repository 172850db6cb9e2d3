// Cross-entropy with its gradient, in new memory or over the logits: checks, allocation, the choice of the rung.
#include "loss/cross_entropy_with_grad/cross_entropy_with_grad.h"

#include <tuple>

#include "host/ladder.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cross_entropy_with_grad";
const Ladder<CrossEntropyWithGradArgs> ladder{kOp};

using Results = std::tuple<Tensor, Tensor, Tensor>;
using Losses = std::tuple<Tensor, Tensor>;

// What a call is given besides its place for the gradient.
struct Call {
  const Tensor &logits, &target;
  const std::optional<Tensor>& grad_loss;
  int64_t ignore_index;
  double label_smoothing, z_loss;

  void check() const {
    check_cross_entropy(kOp, logits, target, label_smoothing);
    if (grad_loss) check_per_row(kOp, "grad_loss", *grad_loss, logits);
  }

  Results fall_back() const {
    return call_fallback<Results>("warpsmith::cross_entropy_with_grad", logits, target, grad_loss, ignore_index,
                                  label_smoothing, z_loss);
  }

  Losses empty_losses() const {
    return {empty_contiguous(logits, target.sizes(), ScalarType::Float),
            empty_contiguous(logits, target.sizes(), ScalarType::Float)};
  }

  // False where no rung takes the call.
  bool launch(const CrossEntropyInput& in, const Losses& losses, void* dlogits, int64_t dlogits_stride,
              const std::string* rung) const {
    const CrossEntropyWithGradArgs args{
        .in = in,
        .grad_loss = grad_loss ? static_cast<const float*>(grad_loss->data_ptr()) : nullptr,
        .loss = static_cast<float*>(std::get<0>(losses).data_ptr()),
        .lse = static_cast<float*>(std::get<1>(losses).data_ptr()),
        .dlogits = dlogits,
        .grad_loss_stride = grad_loss ? grad_loss->strides()[0] : 0,
        .dlogits_stride = dlogits_stride,
    };
    const int device = logits.get_device_index();
    const int sm = device_info(device).sm;
    const cudaStream_t stream = current_stream(device);
    if (rung != nullptr) {
      Ladder<CrossEntropyWithGradArgs>::run_named(kOp, *rung, args, sm, stream);
      return true;
    }
    const Rung<CrossEntropyWithGradArgs>* best = Ladder<CrossEntropyWithGradArgs>::choose(args, sm);
    if (best != nullptr) Ladder<CrossEntropyWithGradArgs>::run(*best, args, stream);
    return best != nullptr;
  }
};

Results run(const Call& call, const std::string* rung) {
  call.check();
  if (!has_float_kernel(call.logits)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(call.logits.scalar_type()));
    return call.fall_back();
  }
  const auto [loss, lse] = call.empty_losses();
  Tensor dlogits = empty_contiguous(call.logits, call.logits.sizes(), call.logits.scalar_type());
  if (dlogits.numel() == 0) return {loss, lse, dlogits};
  const DeviceScope scope(call.logits.get_device_index());
  Tensor rows = call.logits;
  const auto in = cross_entropy_input(rows, call.target, call.ignore_index, call.label_smoothing, call.z_loss);
  if (!call.launch(in, {loss, lse}, dlogits.data_ptr(), in.cols, rung)) return call.fall_back();
  return {loss, lse, dlogits};
}

Results cross_entropy_with_grad(const Tensor& logits, const Tensor& target, std::optional<Tensor> grad_loss,
                                int64_t ignore_index, double label_smoothing, double z_loss) {
  return run({logits, target, grad_loss, ignore_index, label_smoothing, z_loss}, nullptr);
}

Results cross_entropy_with_grad_rung(const Tensor& logits, const Tensor& target, std::optional<Tensor> grad_loss,
                                     int64_t ignore_index, double label_smoothing, double z_loss, std::string rung,
                                     std::string) {
  return run({logits, target, grad_loss, ignore_index, label_smoothing, z_loss}, &rung);
}

// The gradient takes the place of the logits; where these have no rows to work on, by way of a copy.
Losses cross_entropy_with_grad_(Tensor logits, const Tensor& target, std::optional<Tensor> grad_loss,
                                int64_t ignore_index, double label_smoothing, double z_loss) {
  const Call call{logits, target, grad_loss, ignore_index, label_smoothing, z_loss};
  call.check();
  check_rows_apart(kOp, logits);
  const DeviceScope scope(logits.get_device_index());
  if (has_float_kernel(logits)) {
    const Losses losses = call.empty_losses();
    if (logits.numel() == 0) return losses;
    Tensor rows = logits;
    const auto in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss);
    if (call.launch(in, losses, rows.data_ptr(), in.logits_stride, nullptr)) {
      if (rows.data_ptr() != logits.data_ptr()) torch::stable::copy_(logits, rows);
      return losses;
    }
  }
  const auto [loss, lse, dlogits] = call.fall_back();
  torch::stable::copy_(logits, dlogits);
  return {loss, lse};
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("cross_entropy_with_grad", TORCH_BOX(&cross_entropy_with_grad));
  m.impl("cross_entropy_with_grad.rung", TORCH_BOX(&cross_entropy_with_grad_rung));
  m.impl("cross_entropy_with_grad_", TORCH_BOX(&cross_entropy_with_grad_));
}

}  // namespace
}  // namespace warpsmith
