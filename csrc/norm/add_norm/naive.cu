// Residual norms, a block per row and one value an access.
//   The first sweep adds, writes h and sums by shuffles; the last one reads h back and normalises; layer norm sweeps once
//   more in between. Any alignment, any length. Bound: the number of memory instructions.
#include "norm/add_norm/sweeps.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormArgs&) { return nullptr; }

void launch(const AddNormArgs& a, cudaStream_t stream) {
  visit_add_norm(a, [&]<class Types>() { launch_naive(AddNormRows<Types>(a), stream); });
}

const Register<AddNormArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
