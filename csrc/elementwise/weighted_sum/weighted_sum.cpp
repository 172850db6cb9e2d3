// weighted_sum_forward: checks, allocation, the choice of the rung.
#include "elementwise/weighted_sum/weighted_sum.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "host/ladder.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "weighted_sum_forward";
const Ladder<WeightedSumArgs> ladder{"weighted_sum"};

using OptionalTensor = std::optional<Tensor>;
using Others = std::array<OptionalTensor, kMostTerms - 1>;  // x1 to x7
using Weights = std::vector<double>;

// How many terms there are.
int check(const Tensor& x0, const Weights& weights, const Others& others) {
  check_floating(kOp, "x0", x0);
  int terms = 1;
  for (int k = 1; k < kMostTerms; ++k) {
    const OptionalTensor& x = others[k - 1];
    if (!x) continue;
    const std::string name = "x" + std::to_string(k);
    if (terms < k) fail(kOp, "expected no tensor after x", std::to_string(terms), ", which is missing, got ", name);
    ++terms;
    check_device_like(kOp, name, *x, x0, "x0");
    if (x->scalar_type() != x0.scalar_type()) {
      fail(kOp, "expected ", name, " to have dtype ", dtype_name(x0.scalar_type()), " like x0, got ",
           dtype_name(x->scalar_type()));
    }
    const Sizes sizes = x->sizes(), wanted = x0.sizes();
    if (sizes.size() != wanted.size() || !std::equal(sizes.begin(), sizes.end(), wanted.begin())) {
      fail(kOp, "expected ", name, " to have shape ", shape_text(wanted), " like x0, got ", shape_text(sizes));
    }
  }
  if (static_cast<int>(weights.size()) != terms) {
    fail(kOp, "expected a weight for each of ", std::to_string(terms), " tensors, got ",
         std::to_string(weights.size()));
  }
  return terms;
}

bool same_strides(const Tensor& a, const Tensor& b) {
  const Sizes x = a.strides(), y = b.strides();
  return std::equal(x.begin(), x.end(), y.begin(), y.end());
}

Tensor run(const Tensor& x0, const Weights& weights, const Others& others, const std::string* rung) {
  const int terms = check(x0, weights, others);
  const auto fall_back = [&] {
    return call_fallback<Tensor>("warpsmith::weighted_sum_forward", x0, weights, others[0], others[1], others[2],
                                 others[3], others[4], others[5], others[6]);
  };
  if (!has_float_kernel(x0)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x0.scalar_type()));
    return fall_back();
  }
  // one order of elements for all: theirs, or that of contiguous copies
  bool alike = is_dense(x0);
  for (int k = 1; k < terms; ++k) alike = alike && same_strides(*others[k - 1], x0);
  Tensor y = alike ? empty_strided(x0, x0.sizes(), x0.strides(), x0.scalar_type())
                   : empty_contiguous(x0, x0.sizes(), x0.scalar_type());
  if (y.numel() == 0) return y;

  const int device = x0.get_device_index();
  const DeviceScope scope(device);
  std::vector<Tensor> operands;
  for (int k = 0; k < terms; ++k) {
    const Tensor& x = k == 0 ? x0 : *others[k - 1];
    operands.push_back(alike ? x : *dense(x));
  }
  WeightedSumArgs args{};
  for (int k = 0; k < terms; ++k) {
    args.x[k] = operands[k].data_ptr();
    args.weights[k] = static_cast<float>(weights[k]);
  }
  args.terms = terms;
  args.y = y.data_ptr();
  args.n = y.numel();
  args.dtype = *kernel_dtype(x0.scalar_type());
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<WeightedSumArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<WeightedSumArgs>::choose(args, sm)) {
    Ladder<WeightedSumArgs>::run(*best, args, stream);
  } else {
    return fall_back();
  }
  return y;
}

Tensor weighted_sum_forward(const Tensor& x0, Weights weights, OptionalTensor x1, OptionalTensor x2, OptionalTensor x3,
                            OptionalTensor x4, OptionalTensor x5, OptionalTensor x6, OptionalTensor x7) {
  return run(x0, weights, {x1, x2, x3, x4, x5, x6, x7}, nullptr);
}

Tensor weighted_sum_forward_rung(const Tensor& x0, Weights weights, OptionalTensor x1, OptionalTensor x2,
                                 OptionalTensor x3, OptionalTensor x4, OptionalTensor x5, OptionalTensor x6,
                                 OptionalTensor x7, std::string rung, std::string) {
  return run(x0, weights, {x1, x2, x3, x4, x5, x6, x7}, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("weighted_sum_forward", TORCH_BOX(&weighted_sum_forward));
  m.impl("weighted_sum_forward.rung", TORCH_BOX(&weighted_sum_forward_rung));
}

}  // namespace
}  // namespace warpsmith
