// Residual norm into fp8, a block per row and one value an access.
//   As `naive` of add_norm; what differs is the rounding. Bound: the number of memory instructions.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<AddNormFp8Args> registered{"naive", /*min_sm=*/80, takes_any<AddNormFp8Args>,
                                          launch_single<OfSumToFp8, AddNormFp8Args>};

}  // namespace
}  // namespace warpsmith
