// Residual norms, a block per row and one value an access.
//   The first sweep adds, writes h and sums by shuffles; the last one reads h back and normalises; layer norm sweeps once
//   more in between. Any alignment, any length. Bound: the number of memory instructions.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<AddNormArgs> registered{"naive", /*min_sm=*/80, takes_any<AddNormArgs>,
                                       launch_single<OfSum, AddNormArgs>};

}  // namespace
}  // namespace warpsmith
