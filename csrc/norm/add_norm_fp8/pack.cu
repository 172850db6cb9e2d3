// Residual norm into fp8, one access of 16 bytes at a time on the wider of x and residual.
//   Against `naive`: the fewest, widest loads; y leaves in a quarter or half of their width. Bound: h, or x, is read back,
//   from L2 where it still lies there.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<AddNormFp8Args> registered{"pack", /*min_sm=*/80, takes_packs<AddNormFp8Args>,
                                          launch_packs<OfSumToFp8, AddNormFp8Args>};

}  // namespace
}  // namespace warpsmith
