// matmul, linear and addmm: checks, allocation, the choice of the rung.
#include <optional>
#include <string>

#include "gemm/gemm.h"
#include "gemm/product.h"
#include "host/into.h"

namespace warpsmith {
namespace {

const Ladder<GemmArgs> ladder{"matmul"};

// --- matmul -----------------------------------------------------------------------------------------------------

std::optional<Tensor> matmul(const CallInto& call, const Tensor& a, const Tensor& b, bool batch_invariant,
                             const std::string& out_dtype) {
  const bool wide = out_dtype == "f32";
  if (!wide && out_dtype != "same") fail(call.op, "expected out_dtype to be 'same' or 'f32', got '", out_dtype, "'");
  return multiply<GemmArgs>(call, a, b, batch_invariant, wide);
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

std::optional<Tensor> linear(const CallInto& call, const Tensor& x, const Tensor& weight,
                             const std::optional<Tensor>& bias, const std::string& activation, bool batch_invariant) {
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
  if (!has_kernel(call, x)) return std::nullopt;
  Batch batch;
  broadcast(batch, left, right);
  Tensor out = product_of(call, x, batch, left, right, x.dim() > 1, true);
  if (out.numel() == 0) return out;
  if (left.cols() == 0) {
    check_named_of_nothing<GemmArgs>(call, x);
    return std::nullopt;
  }
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
  return run(call, args, out) ? std::optional(out) : std::nullopt;
}

// --- addmm ------------------------------------------------------------------------------------------------------

std::optional<Tensor> addmm(const CallInto& call, const Tensor& c, const Tensor& a, const Tensor& b, double beta,
                            double alpha) {
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
  Tensor out = product_of(call, a, batch, left, right, true, true);
  if (!broadcasts_to(c.sizes(), out.sizes())) {
    fail(kOp, "expected c to be broadcastable to the shape ", shape_text(out.sizes()), " of the product, got ",
         shape_text(c.sizes()));
  }
  if (!has_kernel(call, a)) return std::nullopt;
  if (out.numel() == 0) return out;
  if (left.cols() == 0) {
    check_named_of_nothing<GemmArgs>(call, a);
    return std::nullopt;
  }
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
  return run(call, args, out) ? std::optional(out) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into_unless_elsewhere<&matmul>(m, "matmul");
  bind_into_unless_elsewhere<&linear>(m, "linear");
  bind_into_unless_elsewhere<&addmm>(m, "addmm");
}
STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) {
  define_elsewhere(m, "matmul");
  define_elsewhere(m, "linear");
  define_elsewhere(m, "addmm");
}
STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) {
  implement_elsewhere(m, "matmul");
  implement_elsewhere(m, "linear");
  implement_elsewhere(m, "addmm");
}

}  // namespace
}  // namespace warpsmith
