// quantize, rms_norm_quantize and silu_and_mul_quantize: checks, allocation, the choice of the rung.
#include "quantize/quantize/quantize.h"

#include <tuple>
#include <vector>

#include "host/ceil_div.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

const Ladder<QuantizeArgs> ladder{"quantize"};

using OptionalTensor = std::optional<Tensor>;
using Results = std::tuple<Tensor, Tensor>;  // q, scale

constexpr double kLeastScale = 1.1754943508222875e-38;  // 2^-126

void check_values(std::string_view op, const Tensor& x) {
  check_wide_floating(op, "x", x);
  if (x.dim() == 0) fail(op, "expected at least 1 dimension in x, got shape ()");
}

void check_fp8(std::string_view op, ScalarType type) {
  if (type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2) return;
  fail(op, "expected dtype to be torch.float8_e4m3fn or torch.float8_e5m2, got ", dtype_name(type));
}

Sharers sharers_of_group(std::string_view op, int64_t group) {
  if (group == 0) return Sharers::row;
  if (group == kGroup) return Sharers::group;
  fail(op, "expected group to be 0, a row, or 128, got ", std::to_string(group));
}

std::vector<int64_t> scale_shape(Sizes sizes, Sharers sharers) {
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  if (sharers == Sharers::tensor) return {};
  if (sharers == Sharers::row) {
    shape.pop_back();
    return shape;
  }
  shape.back() = ceil_div(shape.back(), int64_t{kGroup});
  if (sharers == Sharers::block) shape[0] = ceil_div(shape[0], int64_t{kGroup});
  return shape;
}

// `sizes`: of the values. `args` lacks what is allocated here.
std::optional<Results> run(const Call& call, QuantizeArgs args, const Tensor& x, Sizes sizes, ScalarType type) {
  const std::vector<int64_t> shape = scale_shape(sizes, args.sharers);
  Tensor q = empty_contiguous(x, sizes, type);
  Tensor scale = empty_contiguous(x, Sizes(shape.data(), shape.size()), ScalarType::Float);
  if (q.numel() == 0) {
    check_named_of_nothing<QuantizeArgs>(call, x);
    torch::stable::fill_(scale, kLeastScale);
    return Results{q, scale};
  }
  args.q = q.data_ptr();
  args.scale = static_cast<float*>(scale.data_ptr());
  args.dtype = *kernel_dtype(x.scalar_type());
  args.q_dtype = *kernel_dtype(type);
  args.sm_count = device_info(x.get_device_index()).sm_count;
  Tensor partials;
  if (args.sharers == Sharers::tensor) {
    constexpr int64_t kCount = kMostPartials;
    partials = empty_contiguous(x, Sizes(&kCount, 1), ScalarType::Float);
    args.partials = static_cast<uint32_t*>(partials.data_ptr());
  }
  return serve(call, args, x) ? std::optional(Results{q, scale}) : std::nullopt;
}

std::optional<Results> quantize(const Call& call, const Tensor& x, int64_t block_rows, int64_t block_cols,
                                ScalarType type) {
  check_values(call.op, x);
  if (type != ScalarType::Char && type != ScalarType::Float8_e4m3fn && type != ScalarType::Float8_e5m2) {
    fail(call.op, "expected dtype to be torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8, got ", dtype_name(type));
  }
  const auto is = [&](int64_t rows, int64_t cols) { return block_rows == rows && block_cols == cols; };
  if (!is(0, 0) && !is(1, 0) && !is(1, kGroup) && !is(kGroup, kGroup)) {
    fail(call.op, "expected block_rows and block_cols to be 0 and 0, 1 and 0, 1 and 128 or 128 and 128, got ",
         std::to_string(block_rows), " and ", std::to_string(block_cols));
  }
  if (is(kGroup, kGroup) && x.dim() != 2) {
    fail(call.op, "expected x to be 2-D for blocks of 128 x 128, got shape ", shape_text(x.sizes()));
  }
  if (!has_kernel(call, x)) return std::nullopt;
  const Sharers sharers = is(0, 0)        ? Sharers::tensor
                          : is(1, 0)      ? Sharers::row
                          : is(1, kGroup) ? Sharers::group
                                          : Sharers::block;
  Tensor values = sharers == Sharers::tensor ? dense(x) : x;
  const RowShape shape = as_rows(values);
  return run(call,
             {.x = values.data_ptr(),
              .rows = shape.rows,
              .cols = shape.cols,
              .x_stride = shape.stride,
              .sharers = sharers,
              .values = Values::plain},
             x, x.sizes(), type);
}

std::optional<Results> rms_norm_quantize(const Call& call, const Tensor& x, const OptionalTensor& weight,
                                         ScalarType type, int64_t group, double eps, bool zero_centered) {
  check_values(call.op, x);
  if (weight) check_weight(call.op, *weight, x);
  check_fp8(call.op, type);
  const Sharers sharers = sharers_of_group(call.op, group);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor values = x;
  const RowShape shape = as_rows(values);
  const OptionalTensor columns = dense(weight);
  return run(call,
             {.x = values.data_ptr(),
              .weight = columns ? columns->data_ptr() : nullptr,
              .rows = shape.rows,
              .cols = shape.cols,
              .x_stride = shape.stride,
              .eps = static_cast<float>(eps),
              .weight_offset = zero_centered ? 1.0f : 0.0f,
              .sharers = sharers,
              .values = Values::rms_norm,
              .weight_dtype = *kernel_dtype(columns ? columns->scalar_type() : x.scalar_type())},
             x, x.sizes(), type);
}

std::optional<Results> silu_and_mul_quantize(const Call& call, const Tensor& x, const OptionalTensor& up,
                                             ScalarType type, int64_t group) {
  check_values(call.op, x);
  const int64_t last = x.dim() - 1;
  if (up) {
    check_like(call.op, "up", *up, x, "x");
  } else if (x.size(last) % 2 != 0) {
    fail(call.op, "expected the last dimension of x to be even, got shape ", shape_text(x.sizes()));
  }
  check_fp8(call.op, type);
  const Sharers sharers = sharers_of_group(call.op, group);
  if (!has_kernel(call, x)) return std::nullopt;
  const Sizes sizes = x.sizes();
  std::vector<int64_t> half(sizes.begin(), sizes.end());
  if (!up) half.back() /= 2;
  Tensor gate = x, factor = up ? *up : x;
  const RowShape shape = as_rows(gate);
  if (!up) factor = gate;
  const RowShape of_up = as_rows(factor);
  const int64_t offset = up ? 0 : half.back() * size_of(*kernel_dtype(x.scalar_type()));
  return run(call,
             {.x = gate.data_ptr(),
              .up = static_cast<const char*>(factor.data_ptr()) + offset,
              .rows = shape.rows,
              .cols = half.back(),
              .x_stride = shape.stride,
              .up_stride = of_up.stride,
              .sharers = sharers,
              .values = Values::silu_and_mul},
             x, Sizes(half.data(), half.size()), type);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&quantize>(m, "quantize");
  bind<&rms_norm_quantize>(m, "rms_norm_quantize");
  bind<&silu_and_mul_quantize>(m, "silu_and_mul_quantize");
}

}  // namespace
}  // namespace warpsmith
