// matmul_tf32: checks, allocation, the choice of the rung.
#include "gemm/matmul_tf32/matmul_tf32.h"

#include <string>

#include "gemm/product.h"
#include "host/into.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "matmul_tf32";
const Ladder<Tf32Args> ladder{kOp};

std::optional<Tensor> run(const CallInto& call, const Tensor& a, const Tensor& b) {
  check_operand(kOp, "a", a, 1);
  if (a.scalar_type() != ScalarType::Float && a.scalar_type() != ScalarType::Double) {
    fail(kOp, "expected a to have dtype torch.float32, got ", dtype_name(a.scalar_type()));
  }
  return multiply<Tf32Args>(call, a, b);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into_unless_elsewhere<&run>(m, kOp); }
STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) { define_elsewhere(m, "matmul_tf32"); }
STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) { implement_elsewhere(m, "matmul_tf32"); }

}  // namespace
}  // namespace warpsmith
