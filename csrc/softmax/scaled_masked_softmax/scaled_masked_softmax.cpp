// Softmax of attention scores, without and with dropout: checks, allocation, the choice of the rung.
#include "softmax/scaled_masked_softmax/scaled_masked_softmax.h"

#include <cmath>
#include <tuple>

#include "host/elsewhere.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"
#include "softmax/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kPlain = "scaled_masked_softmax";
constexpr const char* kDropout = "bias_scale_mask_softmax_dropout";
const Ladder<ScaledMaskedSoftmaxArgs> ladder{kPlain};

void check_either_mask(const Tensor& mask, const Tensor& x) {
  check_broadcasts(kPlain, "mask", mask, x);
  const ScalarType type = mask.scalar_type();
  if (type == ScalarType::Bool || is_bias_dtype(type, x)) return;
  fail(kPlain, "expected mask to have dtype torch.bool, ", bias_dtypes(x), ", got ", dtype_name(type));
}

std::optional<Tensor> run_plain(const Call& call, const Tensor& x, const std::optional<Tensor>& mask, double scale,
                                bool causal) {
  check_rows(kPlain, x);
  if (mask) check_either_mask(*mask, x);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (y.numel() == 0) return y;
  Tensor input = x;
  std::optional<Tensor> added, excluded;
  if (mask) (mask->scalar_type() == ScalarType::Bool ? excluded : added) = mask;
  const ScaledMaskedSoftmaxArgs args{
      .logits = logit_args(input, added, excluded, scale, causal),
      .y = y.data_ptr(),
      .lse = nullptr,
      .dropout = Dropout{},
  };
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

using WithLse = std::tuple<Tensor, Tensor>;

std::optional<WithLse> run_dropout(const Call& call, const Tensor& x, const std::optional<Tensor>& bias,
                                   const std::optional<Tensor>& mask, double scale, bool causal, double p, int64_t seed,
                                   int64_t offset) {
  check_rows(kDropout, x);
  if (bias) check_bias(kDropout, *bias, x);
  if (mask) check_bool_mask(kDropout, *mask, x);
  check_share(kDropout, "p", p);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  const Tensor lse = empty_contiguous(x, Sizes(x.sizes().data(), x.sizes().size() - 1), ScalarType::Float);
  if (y.numel() == 0) {
    if (lse.numel() > 0) {
      check_named_of_nothing<ScaledMaskedSoftmaxArgs>(call, x);
      torch::stable::fill_(lse, -INFINITY);
    }
    return WithLse{y, lse};
  }
  Tensor input = x;
  std::optional<Tensor> added = bias, excluded = mask;
  const ScaledMaskedSoftmaxArgs args{
      .logits = logit_args(input, added, excluded, scale, causal),
      .y = y.data_ptr(),
      .lse = static_cast<float*>(lse.data_ptr()),
      .dropout = Dropout(p, seed, offset),
  };
  return serve(call, args, y) ? std::optional(WithLse{y, lse}) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_unless_elsewhere<&run_plain>(m, kPlain);
  bind<&run_dropout>(m, kDropout);
}
STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) { define_elsewhere(m, kPlain); }
STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) { implement_elsewhere(m, kPlain); }

}  // namespace
}  // namespace warpsmith
