// Cross-entropy with its gradient, in new memory or over the logits: checks, allocation, the choice of the rung.
#include "loss/cross_entropy/with_grad/cross_entropy_with_grad.h"

#include <tuple>

#include "host/serve.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cross_entropy_with_grad";
const Ladder<CrossEntropyWithGradArgs> ladder{"cross_entropy/with_grad"};

using Results = std::tuple<Tensor, Tensor, Tensor>;
using Losses = std::tuple<Tensor, Tensor>;

// The arguments of a call.
struct Request {
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
  bool launch(const Call& call, const CrossEntropyInput& in, const Losses& losses, void* dlogits,
              int64_t dlogits_stride) const {
    const CrossEntropyWithGradArgs args{
        .in = in,
        .grad_loss = grad_loss ? static_cast<const float*>(grad_loss->data_ptr()) : nullptr,
        .loss = static_cast<float*>(std::get<0>(losses).data_ptr()),
        .lse = static_cast<float*>(std::get<1>(losses).data_ptr()),
        .dlogits = dlogits,
        .grad_loss_stride = grad_loss ? grad_loss->strides()[0] : 0,
        .dlogits_stride = dlogits_stride,
    };
    return serve(call, args, logits);
  }
};

std::optional<Results> run(const Call& call, const Tensor& logits, const Tensor& target,
                           const std::optional<Tensor>& grad_loss, int64_t ignore_index, double label_smoothing,
                           double z_loss) {
  const Request request{logits, target, grad_loss, ignore_index, label_smoothing, z_loss};
  request.check();
  if (!has_kernel(call, logits)) return std::nullopt;
  const auto [loss, lse] = request.empty_losses();
  Tensor dlogits = empty_contiguous(logits, logits.sizes(), logits.scalar_type());
  if (dlogits.numel() == 0) return Results{loss, lse, dlogits};
  Tensor rows = logits;
  const auto in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss);
  if (!request.launch(call, in, {loss, lse}, dlogits.data_ptr(), in.cols)) return std::nullopt;
  return Results{loss, lse, dlogits};
}

// The gradient takes the place of the logits; where these have no rows to work on, by way of a copy.
Losses cross_entropy_with_grad_(Tensor logits, const Tensor& target, std::optional<Tensor> grad_loss,
                                int64_t ignore_index, double label_smoothing, double z_loss) {
  const Request request{logits, target, grad_loss, ignore_index, label_smoothing, z_loss};
  request.check();
  check_rows_apart(kOp, logits);
  if (has_float_kernel(logits)) {
    const Losses losses = request.empty_losses();
    if (logits.numel() == 0) return losses;
    Tensor rows = logits;
    const auto in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss);
    if (request.launch({kOp}, in, losses, rows.data_ptr(), in.logits_stride)) {
      if (rows.data_ptr() != logits.data_ptr()) torch::stable::copy_(logits, rows);
      return losses;
    }
  }
  const auto [loss, lse, dlogits] = request.fall_back();
  torch::stable::copy_(logits, dlogits);
  return {loss, lse};
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&run>(m, kOp);
  m.impl("cross_entropy_with_grad_", TORCH_BOX(&cross_entropy_with_grad_));
}

}  // namespace
}  // namespace warpsmith
