// matmul, linear and addmm: checks, allocation, the choice of the rung.
#include <optional>
#include <string>

#include "gemm/gemm.h"
#include "gemm/operands.h"
#include "gemm/split.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const Ladder<GemmArgs> ladder{"matmul"};

// Which rung and accumulator: the ladder's own choice, or what a variant names.
struct Named {
  std::string rung, accumulator;
};

Dtype accumulator_of(const char* op, const Named& named, Dtype dtype) {
  if (named.accumulator == "f32") return Dtype::f32;
  if (named.accumulator == "f16" && dtype == Dtype::f16) return Dtype::f16;
  fail(op, "no accumulator '", named.accumulator, "' for ", name_of(dtype));
}

// Runs the rung on `out`; false where the ladder has none for the call.
bool run(const char* op, GemmArgs& p, const Tensor& out, const Named* named) {
  const int device = out.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  merge_batch_into_rows(p);
  p.d = out.data_ptr();
  p.dtype = *kernel_dtype(out.scalar_type());
  p.accumulator = named != nullptr ? accumulator_of(op, *named, p.dtype) : Dtype::f32;
  p.sm = info.sm;
  p.sm_count = info.sm_count;
  Tensor workspace;
  if (const int64_t bytes = split_workspace_bytes(p); bytes > 0) {
    const int64_t sums = bytes / static_cast<int64_t>(sizeof(float));
    workspace = empty_contiguous(out, Sizes(&sums, 1), ScalarType::Float);
    p.workspace = workspace.data_ptr();
  }
  const cudaStream_t stream = current_stream(device);
  if (named != nullptr) {
    Ladder<GemmArgs>::run_named(op, named->rung, p, info.sm, stream);
    return true;
  }
  const Rung<GemmArgs>* best = Ladder<GemmArgs>::choose(p, info.sm);
  if (best == nullptr) return false;
  Ladder<GemmArgs>::run(*best, p, stream);
  return true;
}

void check_operand(const char* op, const char* name, const Tensor& x, int least) {
  check_floating(op, name, x);
  const auto dtype = kernel_dtype(x.scalar_type());
  if (dtype && is_fp8(*dtype)) {
    fail(op, "expected ", name, " to have at least 16 bits an element, got ", dtype_name(x.scalar_type()));
  }
  if (x.dim() < least) {
    fail(op, "expected at least ", std::to_string(least), " dimension", least > 1 ? "s" : "", " in ", name,
         ", got shape ", shape_text(x.sizes()));
  }
}

// The shape of the product: the batch, then rows and columns where the operand is no vector.
Tensor empty_product(const Tensor& a, const Batch& batch, const Layout& left, const Layout& right, bool rows,
                     bool cols) {
  Batch shape = batch;
  if (rows) shape.size[shape.rank++] = left.rows();
  if (cols) shape.size[shape.rank++] = right.cols();
  return empty_contiguous(a, Sizes(shape.size.data(), shape.rank), a.scalar_type());
}

// --- matmul -----------------------------------------------------------------------------------------------------

Tensor run_matmul(const Tensor& a, const Tensor& b, const Named* named) {
  constexpr const char* kOp = "matmul";
  check_operand(kOp, "a", a, 1);
  check_operand(kOp, "b", b, 1);
  check_alike(kOp, "b", b, a, "a");
  const Layout left = layout_of(a, Reading::left), right = layout_of(b, Reading::right);
  Batch batch;
  if (left.cols() != right.rows() || !broadcast(batch, left, right)) {
    fail(kOp, "cannot multiply shapes ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  }
  if (!has_float_kernel(a)) {
    if (named != nullptr) fail(kOp, "no rung takes ", dtype_name(a.scalar_type()));
    return call_fallback<Tensor>("warpsmith::matmul", a, b);
  }
  Tensor out = empty_product(a, batch, left, right, a.dim() > 1, b.dim() > 1);
  if (out.numel() == 0) return out;
  if (left.cols() == 0) {
    torch::stable::zero_(out);
    return out;
  }
  Tensor dense_a = a, dense_b = b;
  GemmArgs args{
      .a = as_matrices(dense_a, Reading::left, batch),
      .b = as_matrices(dense_b, Reading::right, batch),
      .batch = batch.count(),
      .m = left.rows(),
      .n = right.cols(),
      .k = left.cols(),
      .alpha = 1.0f,
  };
  return run(kOp, args, out, named) ? out : call_fallback<Tensor>("warpsmith::matmul", a, b);
}

Tensor matmul(const Tensor& a, const Tensor& b) { return run_matmul(a, b, nullptr); }

Tensor matmul_rung(const Tensor& a, const Tensor& b, std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run_matmul(a, b, &named);
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
                  const std::string& activation, const Named* named) {
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
  const auto fall_back = [&] { return call_fallback<Tensor>("warpsmith::linear", x, weight, bias, activation); };
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
  };
  if (bias) {
    dense_bias = *bias;
    args.c = as_addend(dense_bias, batch, args.m, args.n);
  }
  return run(kOp, args, out, named) ? out : fall_back();
}

Tensor linear(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, std::string activation) {
  return run_linear(x, weight, bias, activation, nullptr);
}

Tensor linear_rung(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, std::string activation,
                   std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run_linear(x, weight, bias, activation, &named);
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
