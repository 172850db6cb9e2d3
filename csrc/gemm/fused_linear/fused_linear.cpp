// linear_epilogue, gated_linear, fused_qkv, accumulate_matmul and linear_weight_gradient: checks, allocation, the choice of
// the rung.
#include "gemm/fused_linear/fused_linear.h"

#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "gemm/product.h"
#include "host/into.h"
#include "host/share_memory.h"

namespace warpsmith {
namespace {

using OptionalTensor = std::optional<Tensor>;

const Ladder<FusedArgs> ladder{"fused_linear"};

// --- checks -----------------------------------------------------------------------------------------------------

void check_weight(const char* op, const char* name, const Tensor& weight, const Tensor& x) {
  check_operand(op, name, weight, 2);
  if (weight.dim() != 2) fail(op, "expected ", name, " to be 2-D, got shape ", shape_text(weight.sizes()));
  check_alike(op, name, weight, x, "x");
  if (weight.size(1) != x.size(x.dim() - 1)) {
    fail(op, "cannot multiply shapes ", shape_text(x.sizes()), " and ", shape_text(weight.sizes()), " transposed");
  }
}

// A bias may be of f32 beside operands of 16 bits.
void check_bias(const char* op, const char* name, const Tensor& bias, const Tensor& x, int64_t n) {
  check_device_like(op, name, bias, x, "x");
  if (bias.scalar_type() != x.scalar_type() && bias.scalar_type() != ScalarType::Float) {
    fail(op, "expected ", name, " to have dtype ", dtype_name(x.scalar_type()), " like x",
         x.scalar_type() == ScalarType::Float ? "" : " or torch.float32", ", got ", dtype_name(bias.scalar_type()));
  }
  if (bias.dim() != 1 || bias.size(0) != n) {
    fail(op, "expected ", name, " to have shape (", std::to_string(n), ",), the rows of its weight, got ",
         shape_text(bias.sizes()));
  }
}

Activation activation_of(const char* op, const std::string& name, bool gate) {
  if (!gate && name == "none") return Activation::none;
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "silu") return Activation::silu;
  fail(op, "expected activation to be ", gate ? "" : "'none', ", "'relu', 'gelu', 'gelu_tanh' or 'silu', got '", name,
       "'");
}

// --- arguments --------------------------------------------------------------------------------------------------

// Tensors that arguments point into.
struct Held {
  Tensor x, weight, up, bias, up_bias, residual, workspace;
};

Tensor dense_copy(const Tensor& x) {
  Tensor copy = empty_contiguous(x, x.sizes(), x.scalar_type());
  torch::stable::copy_(copy, x);
  return copy;
}

Matrix as_weight(Tensor& weight) { return as_matrices(weight, Reading::transposed, Batch{}); }

// x as one matrix of rows, a copy where no single stride walks them.
void set_rows(FusedArgs& p, Tensor& x) {
  const Layout left = layout_of(x, Reading::left);
  Batch batch;
  broadcast(batch, left, left);
  p.m = left.rows();
  p.k = left.cols();
  p.batch = batch.count();
  p.a = as_matrices(x, Reading::left, batch);
  merge_batch_into_rows(p);
  if (p.batch == 1 && (p.a.order == Order::rows || p.k == 1)) return;
  x = dense_copy(x);
  p.m *= p.batch;
  p.batch = 1;
  p.a = {.data = x.data_ptr(), .ld = p.m > 1 ? p.k : 0, .batch = 0, .order = Order::rows};
}

// As kernels read what they add, by packs from one end to the other.
const void* as_packs(Tensor& held, const Tensor& x) {
  const bool packs = x.is_contiguous() && reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
  held = packs ? x : dense_copy(x);
  return held.data_ptr();
}

FusedArgs layer_args(Held& held, Ends ends, const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  FusedArgs p{};
  p.ends = ends;
  p.alpha = 1.0f;
  held.x = x;
  set_rows(p, held.x);
  held.weight = weight;
  p.b = as_weight(held.weight);
  p.n = weight.size(0);
  if (bias) {
    p.bias = as_packs(held.bias, *bias);
    p.wide_bias = bias->scalar_type() != x.scalar_type();
  }
  return p;
}

// Of two matrices, [m, k] as `reading` reads a, and [k, n].
FusedArgs product_args(Held& held, Ends ends, const Tensor& a, Reading reading, const Tensor& b) {
  FusedArgs p{};
  p.ends = ends;
  p.alpha = 1.0f;
  held.x = a;
  held.weight = b;
  p.a = as_matrices(held.x, reading, Batch{});
  p.b = as_matrices(held.weight, Reading::right, Batch{});
  p.batch = 1;
  p.m = a.size(reading == Reading::transposed ? 1 : 0);
  p.n = b.size(1);
  p.k = b.size(0);
  return p;
}

bool run(const Call& call, FusedArgs& p, Held& held, const Tensor& like, ScalarType type) {
  const int device = like.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  p.dtype = *kernel_dtype(type);
  p.accumulator = Dtype::f32;
  p.sm = info.sm;
  p.sm_count = info.sm_count;
  if (const int64_t slices = may_split(p) ? most_splits(p) : 1; slices > 1) {
    const int64_t products = slices * p.m * p.n, rows = p.ends == Ends::gradient ? slices * p.m : 0;
    const int64_t sums = products + rows;
    held.workspace = empty_contiguous(like, Sizes(&sums, 1), ScalarType::Float);
    p.workspace = held.workspace.data_ptr();
    p.partial_rows = static_cast<float*>(p.workspace) + products;
  }
  return serve(call, p, like);
}

// A row of n for each of x: the result of a layer.
Tensor result_rows(const CallInto& call, const Tensor& x, int64_t n) {
  std::array<int64_t, kMostDims> sizes;
  const size_t rank = x.sizes().size();
  for (size_t i = 0; i + 1 < rank; ++i) sizes[i] = x.sizes()[i];
  sizes[rank - 1] = n;
  return result(call, x, Sizes(sizes.data(), rank), x.scalar_type());
}

// A value of f32 for each row, to become the largest of magnitudes.
Tensor zero_rows(const Tensor& x) {
  Tensor rows = empty_contiguous(x, Sizes(x.sizes().data(), x.sizes().size() - 1), ScalarType::Float);
  torch::stable::zero_(rows);
  return rows;
}

// --- linear_epilogue --------------------------------------------------------------------------------------------

void check_residual(const char* op, const Tensor& residual, const Tensor& x, int64_t n) {
  check_alike(op, "residual", residual, x, "x");
  std::array<int64_t, kMostDims> wanted;
  const size_t rank = x.sizes().size();
  for (size_t i = 0; i < rank; ++i) wanted[i] = i + 1 < rank ? x.sizes()[i] : n;
  bool same = residual.sizes().size() == rank;
  for (size_t i = 0; same && i < rank; ++i) same = residual.sizes()[i] == wanted[i];
  if (same) return;
  fail(op, "expected residual to have shape ", shape_text(Sizes(wanted.data(), rank)), ", that of the result, got ",
       shape_text(residual.sizes()));
}

using Epilogue = std::tuple<Tensor, OptionalTensor, OptionalTensor>;

std::optional<Epilogue> linear_epilogue(const CallInto& call, const Tensor& x, const Tensor& weight,
                                        const OptionalTensor& bias, const OptionalTensor& residual, double scale,
                                        const std::string& activation, bool keep, bool amax) {
  constexpr const char* kOp = "linear_epilogue";
  check_operand(kOp, "x", x, 1);
  check_weight(kOp, "weight", weight, x);
  if (bias) check_bias(kOp, "bias", *bias, x, weight.size(0));
  const Activation function = activation_of(kOp, activation, false);
  if (residual) check_residual(kOp, *residual, x, weight.size(0));
  check_alone(call, keep || amax);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor y = result_rows(call, x, weight.size(0));
  Epilogue results{y, std::nullopt, std::nullopt};
  if (keep) std::get<1>(results) = empty_contiguous(x, y.sizes(), x.scalar_type());
  if (amax) std::get<2>(results) = zero_rows(x);
  if (y.numel() == 0) {
    if (amax && std::get<2>(results)->numel() > 0) check_named_of_nothing<FusedArgs>(call, x);
    return results;
  }
  if (weight.size(1) == 0) {
    check_named_of_nothing<FusedArgs>(call, x);
    return std::nullopt;
  }
  Held held;
  FusedArgs p = layer_args(held, Ends::epilogue, x, weight, bias);
  p.alpha = static_cast<float>(scale);
  p.activation = function;
  if (residual) p.residual = as_packs(held.residual, *residual);
  p.d = y.data_ptr();
  if (keep) p.before = std::get<1>(results)->data_ptr();
  if (amax) p.amax = static_cast<unsigned*>(std::get<2>(results)->data_ptr());
  return run(call, p, held, y, x.scalar_type()) ? std::optional(results) : std::nullopt;
}

// --- gated_linear -----------------------------------------------------------------------------------------------

using Gated = std::tuple<Tensor, OptionalTensor, OptionalTensor, OptionalTensor>;

std::optional<Gated> gated_linear(const CallInto& call, const Tensor& x, const Tensor& w_gate, const Tensor& w_up,
                                  const OptionalTensor& b_gate, const OptionalTensor& b_up,
                                  const std::string& activation, bool keep, bool amax) {
  constexpr const char* kOp = "gated_linear";
  check_operand(kOp, "x", x, 1);
  check_weight(kOp, "w_gate", w_gate, x);
  check_weight(kOp, "w_up", w_up, x);
  const int64_t n = w_gate.size(0);
  if (w_up.size(0) != n) {
    fail(kOp, "expected w_up to have the shape ", shape_text(w_gate.sizes()), " of w_gate, got ",
         shape_text(w_up.sizes()));
  }
  if (b_gate) check_bias(kOp, "b_gate", *b_gate, x, n);
  if (b_up) check_bias(kOp, "b_up", *b_up, x, n);
  if (b_gate && b_up && b_gate->scalar_type() != b_up->scalar_type()) {
    fail(kOp, "expected b_up to have dtype ", dtype_name(b_gate->scalar_type()), " like b_gate, got ",
         dtype_name(b_up->scalar_type()));
  }
  const Activation function = activation_of(kOp, activation, true);
  check_alone(call, keep || amax);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor y = result_rows(call, x, n);
  Gated results{y, std::nullopt, std::nullopt, std::nullopt};
  if (amax) std::get<3>(results) = zero_rows(x);
  if (keep) {
    std::get<1>(results) = empty_contiguous(x, y.sizes(), x.scalar_type());
    std::get<2>(results) = empty_contiguous(x, y.sizes(), x.scalar_type());
  }
  if (y.numel() == 0) {
    if (amax && std::get<3>(results)->numel() > 0) check_named_of_nothing<FusedArgs>(call, x);
    return results;
  }
  if (w_gate.size(1) == 0) {
    check_named_of_nothing<FusedArgs>(call, x);
    return std::nullopt;
  }
  Held held;
  FusedArgs p = layer_args(held, Ends::gate, x, w_gate, b_gate);
  held.up = w_up;
  p.up = as_weight(held.up);
  if (p.up.order != p.b.order) {
    held.weight = dense_copy(held.weight);
    held.up = dense_copy(held.up);
    p.b = as_weight(held.weight);
    p.up = as_weight(held.up);
  }
  if (b_up) {
    p.up_bias = as_packs(held.up_bias, *b_up);
    p.wide_bias = b_up->scalar_type() != x.scalar_type();
  }
  p.activation = function;
  p.d = y.data_ptr();
  if (keep) {
    p.before = std::get<1>(results)->data_ptr();
    p.before_up = std::get<2>(results)->data_ptr();
  }
  if (amax) p.amax = static_cast<unsigned*>(std::get<3>(results)->data_ptr());
  return run(call, p, held, y, x.scalar_type()) ? std::optional(results) : std::nullopt;
}

// --- fused_qkv --------------------------------------------------------------------------------------------------

using Qkv = std::tuple<Tensor, Tensor, Tensor>;

std::optional<Qkv> fused_qkv(const CallInto& call, const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                             int64_t heads, int64_t kv_heads, int64_t head_dim, const std::string& layout) {
  constexpr const char* kOp = "fused_qkv";
  check_operand(kOp, "x", x, 1);
  if (x.dim() != 3) fail(kOp, "expected x to be 3-D, got shape ", shape_text(x.sizes()));
  check_weight(kOp, "weight", weight, x);
  if (heads < 1 || kv_heads < 1 || head_dim < 1) fail(kOp, "expected heads, kv_heads and head_dim to be at least 1");
  const int64_t n = (heads + 2 * kv_heads) * head_dim;
  if (weight.size(0) != n) {
    fail(kOp, "expected weight to have ", std::to_string(n), " rows, those of all heads of q, k and v, got shape ",
         shape_text(weight.sizes()));
  }
  if (bias) check_bias(kOp, "bias", *bias, x, n);
  if (layout != "bshd" && layout != "bhsd") fail(kOp, "expected layout to be 'bshd' or 'bhsd', got '", layout, "'");
  if (!has_kernel(call, x)) return std::nullopt;
  const bool heads_first = layout == "bhsd";
  const auto result_heads = [&](int64_t count, int index) {
    const int64_t rows = x.size(1);
    const int64_t sizes[] = {x.size(0), heads_first ? count : rows, heads_first ? rows : count, head_dim};
    return result(call, x, Sizes(sizes, 4), x.scalar_type(), index);
  };
  Tensor q = result_heads(heads, 0), k = result_heads(kv_heads, 1), v = result_heads(kv_heads, 2);
  if (q.numel() == 0) return Qkv{q, k, v};
  if (weight.size(1) == 0) {
    check_named_of_nothing<FusedArgs>(call, x);
    return std::nullopt;
  }
  Held held;
  FusedArgs p = layer_args(held, Ends::heads, x, weight, bias);
  p.d = q.data_ptr();
  p.heads = {.data = {q.data_ptr(), k.data_ptr(), v.data_ptr()},
             .heads = {heads, kv_heads, kv_heads},
             .size = head_dim,
             .rows = x.size(1),
             .heads_first = heads_first};
  return run(call, p, held, q, x.scalar_type()) ? std::optional(Qkv{q, k, v}) : std::nullopt;
}

// --- accumulate_matmul ------------------------------------------------------------------------------------------

bool accumulate_matmul(const Call& call, const Tensor& a, const Tensor& b, const Tensor& total) {
  constexpr const char* kOp = "accumulate_matmul";
  check_operand(kOp, "a", a, 2);
  check_operand(kOp, "b", b, 2);
  for (const auto& [name, x] : {std::pair{"a", &a}, std::pair{"b", &b}}) {
    if (x->dim() != 2) fail(kOp, "expected ", name, " to be 2-D, got shape ", shape_text(x->sizes()));
  }
  check_alike(kOp, "b", b, a, "a");
  if (a.size(1) != b.size(0)) {
    fail(kOp, "cannot multiply shapes ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  }
  check_device_like(kOp, "total", total, a, "a");
  const ScalarType wide = a.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (total.scalar_type() != wide) {
    fail(kOp, "expected total to have dtype ", dtype_name(wide), ", got ", dtype_name(total.scalar_type()));
  }
  if (total.dim() != 2 || total.size(0) != a.size(0) || total.size(1) != b.size(1)) {
    const int64_t sizes[] = {a.size(0), b.size(1)};
    fail(kOp, "expected total to have shape ", shape_text(Sizes(sizes, 2)), ", that of the product, got ",
         shape_text(total.sizes()));
  }
  if (!total.is_contiguous()) fail(kOp, "expected total to be contiguous");
  check_own_memory(kOp, "total", total, "a", a);
  check_own_memory(kOp, "total", total, "b", b);
  if (!has_kernel(call, a)) return false;
  if (total.numel() == 0 || a.size(1) == 0) {
    check_named_of_nothing<FusedArgs>(call, a);
    return true;
  }
  Held held;
  FusedArgs p = product_args(held, Ends::add, a, Reading::left, b);
  p.d = total.data_ptr();
  return run(call, p, held, total, a.scalar_type());
}

// --- linear_weight_gradient -------------------------------------------------------------------------------------

using WeightGradient = std::tuple<Tensor, Tensor>;

std::optional<WeightGradient> linear_weight_gradient(const Call& call, const Tensor& grad, const Tensor& x,
                                                     bool wide_bias) {
  constexpr const char* kOp = "linear_weight_gradient";
  check_operand(kOp, "grad", grad, 2);
  check_operand(kOp, "x", x, 2);
  for (const auto& [name, operand] : {std::pair{"grad", &grad}, std::pair{"x", &x}}) {
    if (operand->dim() != 2) fail(kOp, "expected ", name, " to be 2-D, got shape ", shape_text(operand->sizes()));
  }
  check_alike(kOp, "x", x, grad, "grad");
  if (x.size(0) != grad.size(0)) {
    fail(kOp, "expected x to have as many rows as grad, got shapes ", shape_text(x.sizes()), " and ",
         shape_text(grad.sizes()));
  }
  if (!has_kernel(call, grad)) return std::nullopt;
  if (grad.numel() == 0 || x.numel() == 0) {
    if (grad.size(1) != 0) check_named_of_nothing<FusedArgs>(call, grad);
    return std::nullopt;
  }
  const int64_t sizes[] = {grad.size(1), x.size(1)};
  WeightGradient results{empty_contiguous(grad, Sizes(sizes, 2), grad.scalar_type()),
                         empty_contiguous(grad, Sizes(sizes, 1), wide_bias ? ScalarType::Float : grad.scalar_type())};
  Held held;
  FusedArgs p = product_args(held, Ends::gradient, grad, Reading::transposed, x);
  p.wide_bias = wide_bias;
  p.d = std::get<0>(results).data_ptr();
  p.row_sums = std::get<1>(results).data_ptr();
  return run(call, p, held, grad, grad.scalar_type()) ? std::optional(results) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into<&linear_epilogue>(m, "linear_epilogue");
  bind_into<&gated_linear>(m, "gated_linear");
  bind_into<&fused_qkv>(m, "fused_qkv");
  bind<&accumulate_matmul>(m, "accumulate_matmul");
  bind<&linear_weight_gradient>(m, "linear_weight_gradient");
}

}  // namespace
}  // namespace warpsmith
