// matmul, linear and addmm: checks, allocation, the choice of the rung.
#include <optional>
#include <string>

#include "gemm/gemm.h"
#include "gemm/product.h"

namespace warpsmith {
namespace {

const Ladder<GemmArgs> ladder{"matmul"};

// --- matmul -----------------------------------------------------------------------------------------------------

Tensor matmul(const Tensor& a, const Tensor& b, bool batch_invariant) {
  return multiply<GemmArgs>("matmul", a, b, nullptr, batch_invariant);
}

Tensor matmul_rung(const Tensor& a, const Tensor& b, bool batch_invariant, std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return multiply<GemmArgs>("matmul", a, b, &named, batch_invariant);
}

// --- linear -----------------------------------------------------------------------------------------------------

Activation activation_of(const char* op, const std::string& name) {
  if (name == "none") return Activation::none;
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "silu") return Activation::silu;
  fail(op, "expected activation to be 'none', 'relu', 'gelu', 'gelu_tanh' or 'silu', got '", name, "'");
}

Tensor run_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                  const std::string& activation, bool batch_invariant, const Named* named) {
  constexpr const char* kOp = "linear";
  check_operand(kOp, "x", x, 1);
  check_operand(kOp, "weight", weight, 2);
  if (weight.dim() != 2) fail(kOp, "expected weight to be 2-D, got shape ", shape_text(weight.sizes()));
  check_alike(kOp, "weight", weight, x, "x");
  const Layout left = layout_of(x, Reading::left), right = layout_of(weight, Reading::transposed);
  if (left.cols() != right.rows()) {
    fail(kOp, "cannot multiply shapes ", shape_text(x.sizes()), " and ", shape_text(weight.sizes()), " transposed");
  }
  if (bias) {
    check_alike(kOp, "bias", *bias, x, "x");
    if (bias->dim() != 1 || bias->size(0) != right.cols()) {
      fail(kOp, "expected bias to have shape (", std::to_string(right.cols()), ",), the rows of weight, got ",
           shape_text(bias->sizes()));
    }
  }
  const Activation function = activation_of(kOp, activation);
  const auto fall_back = [&] {
    return call_fallback<Tensor>("warpsmith::linear", x, weight, bias, activation, batch_invariant);
  };
  if (!has_float_kernel(x)) {
    if (named != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return fall_back();
  }
  Batch batch;
  broadcast(batch, left, right);
  Tensor out = empty_product(x, batch, left, right, x.dim() > 1, true);
  if (out.numel() == 0) return out;
  if (left.cols() == 0) return fall_back();
  Tensor dense_x = x, dense_weight = weight, dense_bias;
  GemmArgs args{
      .a = as_matrices(dense_x, Reading::left, batch),
      .b = as_matrices(dense_weight, Reading::transposed, batch),
      .batch = batch.count(),
      .m = left.rows(),
      .n = right.cols(),
      .k = left.cols(),
      .alpha = 1.0f,
      .beta = bias ? 1.0f : 0.0f,
      .activation = function,
      .batch_invariant = batch_invariant,
  };
  if (bias) {
    dense_bias = *bias;
    args.c = as_addend(dense_bias, batch, args.m, args.n);
  }
  return run(kOp, args, out, named) ? out : fall_back();
}

Tensor linear(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, std::string activation,
              bool batch_invariant) {
  return run_linear(x, weight, bias, activation, batch_invariant, nullptr);
}

Tensor linear_rung(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, std::string activation,
                   bool batch_invariant, std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run_linear(x, weight, bias, activation, batch_invariant, &named);
}

// --- addmm ------------------------------------------------------------------------------------------------------

Tensor run_addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha, const Named* named) {
  constexpr const char* kOp = "addmm";
  check_operand(kOp, "a", a, 2);
  check_operand(kOp, "b", b, 2);
  check_floating(kOp, "c", c);
  check_alike(kOp, "b", b, a, "a");
  check_alike(kOp, "c", c, a, "a");
  const Layout left = layout_of(a, Reading::left), right = layout_of(b, Reading::right);
  Batch batch;
  if (left.cols() != right.rows() || !broadcast(batch, left, right)) {
    fail(kOp, "cannot multiply shapes ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  }
  Tensor out = empty_product(a, batch, left, right, true, true);
  if (!broadcasts_to(c.sizes(), out.sizes())) {
    fail(kOp, "expected c to be broadcastable to the shape ", shape_text(out.sizes()), " of the product, got ",
         shape_text(c.sizes()));
  }
  const auto fall_back = [&] { return call_fallback<Tensor>("warpsmith::addmm", c, a, b, beta, alpha); };
  if (!has_float_kernel(a)) {
    if (named != nullptr) fail(kOp, "no rung takes ", dtype_name(a.scalar_type()));
    return fall_back();
  }
  if (out.numel() == 0) return out;
  if (left.cols() == 0) return fall_back();
  Tensor dense_c = c, dense_a = a, dense_b = b;
  GemmArgs args{
      .a = as_matrices(dense_a, Reading::left, batch),
      .b = as_matrices(dense_b, Reading::right, batch),
      .batch = batch.count(),
      .m = left.rows(),
      .n = right.cols(),
      .k = left.cols(),
      .alpha = static_cast<float>(alpha),
      .beta = static_cast<float>(beta),
  };
  // As in PyTorch, a beta of zero drops c, NaN and all.
  if (beta != 0.0) args.c = as_addend(dense_c, batch, args.m, args.n);
  return run(kOp, args, out, named) ? out : fall_back();
}

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return run_addmm(c, a, b, beta, alpha, nullptr);
}

Tensor addmm_rung(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha, std::string rung,
                  std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run_addmm(c, a, b, beta, alpha, &named);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("matmul", TORCH_BOX(&matmul));
  m.impl("matmul.rung", TORCH_BOX(&matmul_rung));
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("linear.rung", TORCH_BOX(&linear_rung));
  m.impl("addmm", TORCH_BOX(&addmm));
  m.impl("addmm.rung", TORCH_BOX(&addmm_rung));
}

}  // namespace
}  // namespace warpsmith
