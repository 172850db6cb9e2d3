// dropout and bias_dropout_add: checks, allocation, the choice of the rung.
#include "elementwise/dropout/dropout.h"

#include <optional>
#include <tuple>

#include "host/checks.h"
#include "host/ladder.h"
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

// Nothing where no kernel takes the call.
std::optional<Outputs> run(const char* op, const Tensor& x, const OptionalTensor& bias, const OptionalTensor& residual,
                           double p, int64_t seed, int64_t offset, const std::string* rung) {
  check(op, x, bias, residual, p);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(op, "no rung takes ", dtype_name(x.scalar_type()));
    return std::nullopt;
  }
  const int64_t n = x.numel(), words = mask_words(n);
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  Tensor mask = empty_contiguous(x, Sizes(&words, 1), ScalarType::Int);
  if (n == 0) return Outputs{y, mask};

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const Tensor dense_x = *dense(x);
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
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<DropoutArgs>::run_named(op, *rung, args, sm, stream);
    return Outputs{y, mask};
  }
  const Rung<DropoutArgs>* best = Ladder<DropoutArgs>::choose(args, sm);
  if (best == nullptr) return std::nullopt;
  Ladder<DropoutArgs>::run(*best, args, stream);
  return Outputs{y, mask};
}

Outputs run_plain(const Tensor& x, double p, int64_t seed, int64_t offset, const std::string* rung) {
  if (auto found = run("dropout", x, std::nullopt, std::nullopt, p, seed, offset, rung)) return *found;
  return call_fallback<Outputs>("warpsmith::dropout", x, p, seed, offset);
}

Outputs run_fused(const Tensor& x, const OptionalTensor& bias, const OptionalTensor& residual, double p, int64_t seed,
                  int64_t offset, const std::string* rung) {
  if (auto found = run("bias_dropout_add", x, bias, residual, p, seed, offset, rung)) return *found;
  return call_fallback<Outputs>("warpsmith::bias_dropout_add", x, bias, residual, p, seed, offset);
}

Outputs dropout(const Tensor& x, double p, int64_t seed, int64_t offset) {
  return run_plain(x, p, seed, offset, nullptr);
}

Outputs dropout_rung(const Tensor& x, double p, int64_t seed, int64_t offset, std::string rung, std::string) {
  return run_plain(x, p, seed, offset, &rung);
}

Outputs bias_dropout_add(const Tensor& x, OptionalTensor bias, OptionalTensor residual, double p, int64_t seed,
                         int64_t offset) {
  return run_fused(x, bias, residual, p, seed, offset, nullptr);
}

Outputs bias_dropout_add_rung(const Tensor& x, OptionalTensor bias, OptionalTensor residual, double p, int64_t seed,
                              int64_t offset, std::string rung, std::string) {
  return run_fused(x, bias, residual, p, seed, offset, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("dropout", TORCH_BOX(&dropout));
  m.impl("dropout.rung", TORCH_BOX(&dropout_rung));
  m.impl("bias_dropout_add", TORCH_BOX(&bias_dropout_add));
  m.impl("bias_dropout_add.rung", TORCH_BOX(&bias_dropout_add_rung));
}

}  // namespace
}  // namespace warpsmith
