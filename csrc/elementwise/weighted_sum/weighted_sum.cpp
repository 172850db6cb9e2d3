// weighted_sum_forward: checks, allocation, the choice of the rung.
#include "elementwise/weighted_sum/weighted_sum.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "host/serve.h"
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
    check_like(kOp, name, *x, x0, "x0");
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

std::optional<Tensor> run(const Call& call, const Tensor& x0, const Weights& weights, const OptionalTensor& x1,
                          const OptionalTensor& x2, const OptionalTensor& x3, const OptionalTensor& x4,
                          const OptionalTensor& x5, const OptionalTensor& x6, const OptionalTensor& x7) {
  const Others others{x1, x2, x3, x4, x5, x6, x7};
  const int terms = check(x0, weights, others);
  if (!has_kernel(call, x0)) return std::nullopt;
  // one order of elements for all: theirs, or that of contiguous copies
  bool alike = is_dense(x0);
  for (int k = 1; k < terms; ++k) alike = alike && same_strides(*others[k - 1], x0);
  Tensor y = alike ? empty_strided(x0, x0.sizes(), x0.strides(), x0.scalar_type())
                   : empty_contiguous(x0, x0.sizes(), x0.scalar_type());
  if (y.numel() == 0) return y;

  std::vector<Tensor> operands;
  for (int k = 0; k < terms; ++k) {
    const Tensor& x = k == 0 ? x0 : *others[k - 1];
    operands.push_back(alike ? x : dense(x));
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
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
