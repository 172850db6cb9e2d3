// Cross-entropy of rows: checks, allocation, the choice of the rung.
#include "loss/cross_entropy_forward/cross_entropy_forward.h"

#include <tuple>

#include "host/ladder.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cross_entropy_forward";
const Ladder<CrossEntropyForwardArgs> ladder{kOp};

using Results = std::tuple<Tensor, Tensor>;

Results run(const Tensor& logits, const Tensor& target, int64_t ignore_index, double label_smoothing, double z_loss,
            const std::string* rung) {
  check_cross_entropy(kOp, logits, target, label_smoothing);
  const auto fall_back = [&] {
    return call_fallback<Results>("warpsmith::cross_entropy_forward", logits, target, ignore_index, label_smoothing,
                                  z_loss);
  };
  if (!has_float_kernel(logits)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(logits.scalar_type()));
    return fall_back();
  }
  Tensor loss = empty_contiguous(logits, target.sizes(), ScalarType::Float);
  Tensor lse = empty_contiguous(logits, target.sizes(), ScalarType::Float);
  if (loss.numel() == 0) return {loss, lse};

  const int device = logits.get_device_index();
  const DeviceScope scope(device);
  Tensor rows = logits;
  const CrossEntropyForwardArgs args{
      .in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss),
      .loss = static_cast<float*>(loss.data_ptr()),
      .lse = static_cast<float*>(lse.data_ptr()),
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<CrossEntropyForwardArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<CrossEntropyForwardArgs>::choose(args, sm)) {
    Ladder<CrossEntropyForwardArgs>::run(*best, args, stream);
  } else {
    return fall_back();
  }
  return {loss, lse};
}

Results cross_entropy_forward(const Tensor& logits, const Tensor& target, int64_t ignore_index, double label_smoothing,
                              double z_loss) {
  return run(logits, target, ignore_index, label_smoothing, z_loss, nullptr);
}

Results cross_entropy_forward_rung(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                   double label_smoothing, double z_loss, std::string rung, std::string) {
  return run(logits, target, ignore_index, label_smoothing, z_loss, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("cross_entropy_forward", TORCH_BOX(&cross_entropy_forward));
  m.impl("cross_entropy_forward.rung", TORCH_BOX(&cross_entropy_forward_rung));
}

}  // namespace
}  // namespace warpsmith
