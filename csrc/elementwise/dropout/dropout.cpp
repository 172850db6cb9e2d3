// dropout and bias_dropout_add: checks, allocation, the choice of the rung.
#include "elementwise/dropout/dropout.h"

#include <optional>
#include <tuple>

#include "host/serve.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

const Ladder<DropoutArgs> ladder{"dropout"};

using OptionalTensor = std::optional<Tensor>;
using Outputs = std::tuple<Tensor, Tensor>;  // y, mask

void check(const char* op, const Tensor& x, const OptionalTensor& bias, const OptionalTensor& residual, double p) {
  check_floating(op, "x", x);
  if (bias) {
    if (x.dim() == 0) fail(op, "expected at least 1 dimension in x, got shape ()");
    check_same_device(op, "bias", *bias, x);
    check_same_dtype(op, "bias", *bias, x);
    const int64_t cols = x.size(x.dim() - 1);
    if (bias->dim() != 1 || bias->size(0) != cols) {
      fail(op, "expected bias to have shape (", std::to_string(cols), ",), the last dimension of x, got ",
           shape_text(bias->sizes()));
    }
  }
  if (residual) {
    check_same_device(op, "residual", *residual, x);
    check_same_dtype(op, "residual", *residual, x);
    check_same_shape(op, "residual", *residual, x);
  }
  check_share(op, "p", p);
}

std::optional<Outputs> bias_dropout_add(const Call& call, const Tensor& x, const OptionalTensor& bias,
                                        const OptionalTensor& residual, double p, int64_t seed, int64_t offset) {
  check(call.op, x, bias, residual, p);
  if (!has_kernel(call, x)) return std::nullopt;
  const int64_t n = x.numel(), words = mask_words(n);
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  Tensor mask = empty_contiguous(x, Sizes(&words, 1), ScalarType::Int);
  if (n == 0) return Outputs{y, mask};

  const Tensor dense_x = dense(x);
  const OptionalTensor dense_bias = dense(bias), dense_residual = dense(residual);
  const DropoutArgs args{
      .x = dense_x.data_ptr(),
      .bias = dense_bias ? dense_bias->data_ptr() : nullptr,
      .residual = dense_residual ? dense_residual->data_ptr() : nullptr,
      .y = y.data_ptr(),
      .mask = static_cast<uint32_t*>(mask.data_ptr()),
      .n = n,
      .cols = x.dim() == 0 ? 1 : x.size(x.dim() - 1),
      .dropout = Dropout(p, seed, offset),
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  return serve(call, args, x) ? std::optional(Outputs{y, mask}) : std::nullopt;
}

std::optional<Outputs> dropout(const Call& call, const Tensor& x, double p, int64_t seed, int64_t offset) {
  return bias_dropout_add(call, x, std::nullopt, std::nullopt, p, seed, offset);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&dropout>(m, "dropout");
  bind<&bias_dropout_add>(m, "bias_dropout_add");
}

}  // namespace
}  // namespace warpsmith
