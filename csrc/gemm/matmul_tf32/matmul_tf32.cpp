// matmul_tf32: checks, allocation, the choice of the rung.
#include "gemm/matmul_tf32/matmul_tf32.h"

#include <string>

#include "gemm/product.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "matmul_tf32";
const Ladder<Tf32Args> ladder{kOp};

Tensor run(const Tensor& a, const Tensor& b, const Named* named) {
  check_operand(kOp, "a", a, 1);
  if (a.scalar_type() != ScalarType::Float && a.scalar_type() != ScalarType::Double) {
    fail(kOp, "expected a to have dtype torch.float32, got ", dtype_name(a.scalar_type()));
  }
  return multiply<Tf32Args>(kOp, a, b, named);
}

Tensor matmul_tf32(const Tensor& a, const Tensor& b) { return run(a, b, nullptr); }

Tensor matmul_tf32_rung(const Tensor& a, const Tensor& b, std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run(a, b, &named);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("matmul_tf32", TORCH_BOX(&matmul_tf32));
  m.impl("matmul_tf32.rung", TORCH_BOX(&matmul_tf32_rung));
}

}  // namespace
}  // namespace warpsmith
