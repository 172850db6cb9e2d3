// quantized_linear: checks, allocation, the choice of the rung.
#include "gemm/quantized_linear/quantized_linear.h"

#include <string>
#include <vector>

#include "host/into.h"
#include "host/serve.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "quantized_linear";
const Ladder<QuantizedLinearArgs> ladder{kOp};

using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kWords4 = 512, kWords8 = 1024;  // of a unit

void check_words(const Tensor& weight, const Tensor& x) {
  check_device_like(kOp, "weight", weight, x, "x");
  if (weight.scalar_type() != ScalarType::Int) {
    fail(kOp, "expected weight to hold torch.int32, got ", dtype_name(weight.scalar_type()));
  }
  if (weight.dim() != 3 || (weight.size(2) != kWords4 && weight.size(2) != kWords8)) {
    fail(kOp, "expected weight to have shape (n / 64, k / 64, 512 or 1024), as repack_quantized_weight gives it, got ",
         shape_text(weight.sizes()));
  }
}

// Returns how many values of k share a scale.
int64_t check_scales(const Tensor& scales, const Tensor& weight, const Tensor& x) {
  check_device_like(kOp, "scales", scales, x, "x");
  if (scales.scalar_type() != x.scalar_type()) {
    fail(kOp, "expected scales to have dtype ", dtype_name(x.scalar_type()), " like x, got ",
         dtype_name(scales.scalar_type()));
  }
  if (scales.dim() != 2) fail(kOp, "expected scales to have shape (groups, n), got ", shape_text(scales.sizes()));
  const int64_t k = x.size(x.dim() - 1), groups = scales.size(0), n = scales.size(1);
  const int64_t down = ceil_div(n, int64_t{kUnit}), across = ceil_div(k, int64_t{kUnit});
  if (weight.size(0) != down || weight.size(1) != across) {
    fail(kOp, "expected weight to have shape (", std::to_string(down), ", ", std::to_string(across),
         ", 512 or 1024) for n of ", std::to_string(n), " and k of ", std::to_string(k), ", got ",
         shape_text(weight.sizes()));
  }
  if (groups == 1) return k;
  const int64_t group = groups == 0 || k % groups != 0 ? 0 : k / groups;
  if (group != 32 && group != 64 && group != 128) {
    fail(kOp, "expected one group, or groups of 32, 64 or 128 of ", std::to_string(k), " values, got ",
         std::to_string(groups), " groups");
  }
  return group;
}

void check_zeros(const OptionalTensor& zeros, const Tensor& scales, const Tensor& weight, const Tensor& x) {
  if (!zeros) return;
  check_device_like(kOp, "zeros", *zeros, x, "x");
  if (zeros->scalar_type() != ScalarType::Char) {
    fail(kOp, "expected zeros to hold torch.int8, got ", dtype_name(zeros->scalar_type()));
  }
  const Sizes a = zeros->sizes(), b = scales.sizes();
  if (a.size() != b.size() || !std::equal(a.begin(), a.end(), b.begin())) {
    fail(kOp, "expected zeros to have shape ", shape_text(b), " like scales, got ", shape_text(a));
  }
  if (weight.size(2) == kWords8) fail(kOp, "expected zeros to be None beside weights of 8 bits");
}

void check_bias(const OptionalTensor& bias, int64_t n, const Tensor& x) {
  if (!bias) return;
  check_device_like(kOp, "bias", *bias, x, "x");
  if (bias->scalar_type() != x.scalar_type()) {
    fail(kOp, "expected bias to have dtype ", dtype_name(x.scalar_type()), " like x, got ",
         dtype_name(bias->scalar_type()));
  }
  if (bias->dim() != 1 || bias->size(0) != n) {
    fail(kOp, "expected bias to have shape (", std::to_string(n), ",), got ", shape_text(bias->sizes()));
  }
}

std::optional<Tensor> run(const CallInto& call, const Tensor& x, const Tensor& weight, const Tensor& scales,
                          const OptionalTensor& zeros, const OptionalTensor& bias) {
  check_wide_floating(kOp, "x", x);
  if (x.dim() == 0) fail(kOp, "expected at least 1 dimension in x, got shape ()");
  check_words(weight, x);
  const int64_t group = check_scales(scales, weight, x), n = scales.size(1);
  check_zeros(zeros, scales, weight, x);
  check_bias(bias, n, x);
  if (!has_kernel(call, x)) return std::nullopt;
  const Sizes sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = n;
  Tensor d = result(call, x, Sizes(shape.data(), shape.size()), x.scalar_type());
  if (d.numel() == 0) return d;

  Tensor rows = x;
  const RowShape of_x = as_rows(rows);
  const Tensor words = dense(weight), of_scales = dense(scales);
  const OptionalTensor of_zeros = dense(zeros), of_bias = dense(bias);
  const DeviceInfo& info = device_info(x.get_device_index());
  QuantizedLinearArgs args{
      .x = rows.data_ptr(),
      .words = static_cast<const uint32_t*>(words.data_ptr()),
      .scales = of_scales.data_ptr(),
      .zeros = of_zeros ? static_cast<const int8_t*>(of_zeros->data_ptr()) : nullptr,
      .bias = of_bias ? of_bias->data_ptr() : nullptr,
      .d = d.data_ptr(),
      .partial = nullptr,
      .m = of_x.rows,
      .n = n,
      .k = of_x.cols,
      .x_stride = of_x.stride,
      .groups = scales.size(0),
      .group = group,
      .bits = weight.size(2) == kWords4 ? 4 : 8,
      .dtype = *kernel_dtype(x.scalar_type()),
      .sm = info.sm,
      .sm_count = info.sm_count,
  };
  Tensor partial;
  if (const int64_t slices = most_quantized_slices(args); slices > 1) {
    const int64_t count = slices * args.m * args.n;
    partial = empty_contiguous(x, Sizes(&count, 1), ScalarType::Float);
    args.partial = static_cast<float*>(partial.data_ptr());
  }
  return serve(call, args, x) ? std::optional(d) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
