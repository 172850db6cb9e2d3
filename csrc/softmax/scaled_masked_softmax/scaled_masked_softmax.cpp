// Softmax of attention scores, without and with dropout: checks, allocation, the choice of the rung.
#include "softmax/scaled_masked_softmax/scaled_masked_softmax.h"

#include <cmath>
#include <tuple>

#include "host/ladder.h"
#include "softmax/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kPlain = "scaled_masked_softmax";
constexpr const char* kDropout = "bias_scale_mask_softmax_dropout";
const Ladder<ScaledMaskedSoftmaxArgs> ladder{kPlain};

// Everything that either operator may be given.
struct Call {
  const char* op;
  Tensor x;
  std::optional<Tensor> bias, mask;
  double scale;
  bool causal;
  Dropout dropout;
};

// Fills y, and lse where there is one. False: no rung takes the call.
bool run(Call& call, Tensor& y, const std::optional<Tensor>& lse, const std::string* rung) {
  const int device = call.x.get_device_index();
  const DeviceScope scope(device);
  const ScaledMaskedSoftmaxArgs args{
      .logits = logit_args(call.x, call.bias, call.mask, call.scale, call.causal),
      .y = y.data_ptr(),
      .lse = lse ? static_cast<float*>(lse->data_ptr()) : nullptr,
      .dropout = call.dropout,
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<ScaledMaskedSoftmaxArgs>::run_named(call.op, *rung, args, sm, stream);
  } else {
    const Rung<ScaledMaskedSoftmaxArgs>* best = Ladder<ScaledMaskedSoftmaxArgs>::choose(args, sm);
    if (best == nullptr) return false;
    Ladder<ScaledMaskedSoftmaxArgs>::run(*best, args, stream);
  }
  return true;
}

void check_either_mask(const Tensor& mask, const Tensor& x) {
  check_broadcasts(kPlain, "mask", mask, x);
  const ScalarType type = mask.scalar_type();
  if (type == ScalarType::Bool || is_bias_dtype(type, x)) return;
  fail(kPlain, "expected mask to have dtype torch.bool, ", bias_dtypes(x), ", got ", dtype_name(type));
}

Tensor run_plain(const Tensor& x, const std::optional<Tensor>& mask, double scale, bool causal,
                 const std::string* rung) {
  check_rows(kPlain, x);
  if (mask) check_either_mask(*mask, x);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kPlain, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::scaled_masked_softmax", x, mask, scale, causal);
  }
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (y.numel() == 0) return y;
  const bool excludes = mask && mask->scalar_type() == ScalarType::Bool;
  const std::optional<Tensor> none;
  Call call{kPlain, x, excludes ? none : mask, excludes ? mask : none, scale, causal, Dropout{}};
  if (run(call, y, std::nullopt, rung)) return y;
  return call_fallback<Tensor>("warpsmith::scaled_masked_softmax", x, mask, scale, causal);
}

using WithLse = std::tuple<Tensor, Tensor>;

WithLse run_dropout(const Tensor& x, const std::optional<Tensor>& bias, const std::optional<Tensor>& mask, double scale,
                    bool causal, double p, int64_t seed, int64_t offset, const std::string* rung) {
  const auto fall_back = [&] {
    return call_fallback<WithLse>("warpsmith::bias_scale_mask_softmax_dropout", x, bias, mask, scale, causal, p, seed,
                                  offset);
  };
  check_rows(kDropout, x);
  if (bias) check_bias(kDropout, *bias, x);
  if (mask) check_bool_mask(kDropout, *mask, x);
  check_share(kDropout, "p", p);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kDropout, "no rung takes ", dtype_name(x.scalar_type()));
    return fall_back();
  }
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  const Tensor lse = empty_contiguous(x, Sizes(x.sizes().data(), x.sizes().size() - 1), ScalarType::Float);
  if (y.numel() == 0) {
    if (lse.numel() > 0) torch::stable::fill_(lse, -INFINITY);
    return {y, lse};
  }
  Call call{kDropout, x, bias, mask, scale, causal, Dropout(p, seed, offset)};
  if (run(call, y, lse, rung)) return {y, lse};
  return fall_back();
}

Tensor scaled_masked_softmax(const Tensor& x, std::optional<Tensor> mask, double scale, bool causal) {
  return run_plain(x, mask, scale, causal, nullptr);
}

Tensor scaled_masked_softmax_rung(const Tensor& x, std::optional<Tensor> mask, double scale, bool causal,
                                  std::string rung, std::string) {
  return run_plain(x, mask, scale, causal, &rung);
}

WithLse bias_scale_mask_softmax_dropout(const Tensor& x, std::optional<Tensor> bias, std::optional<Tensor> mask,
                                        double scale, bool causal, double p, int64_t seed, int64_t offset) {
  return run_dropout(x, bias, mask, scale, causal, p, seed, offset, nullptr);
}

WithLse bias_scale_mask_softmax_dropout_rung(const Tensor& x, std::optional<Tensor> bias, std::optional<Tensor> mask,
                                             double scale, bool causal, double p, int64_t seed, int64_t offset,
                                             std::string rung, std::string) {
  return run_dropout(x, bias, mask, scale, causal, p, seed, offset, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("scaled_masked_softmax", TORCH_BOX(&scaled_masked_softmax));
  m.impl("scaled_masked_softmax.rung", TORCH_BOX(&scaled_masked_softmax_rung));
  m.impl("bias_scale_mask_softmax_dropout", TORCH_BOX(&bias_scale_mask_softmax_dropout));
  m.impl("bias_scale_mask_softmax_dropout.rung", TORCH_BOX(&bias_scale_mask_softmax_dropout_rung));
}

}  // namespace
}  // namespace warpsmith
