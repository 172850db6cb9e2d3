// Residual norms with dropout, a block per row and one value an access.
//   As `naive` of add_norm; every value asks the generator, which answers for four. Any alignment, any length. Bound: the
//   number of instructions.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<DropoutAddNormArgs> registered{"naive", /*min_sm=*/80, takes_any<DropoutAddNormArgs>,
                                              launch_single<OfDropoutSum, DropoutAddNormArgs>};

}  // namespace
}  // namespace warpsmith
