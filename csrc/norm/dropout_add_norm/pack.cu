// Residual norms with dropout, one 128-bit access at a time.
//   Against `naive`: the fewest, widest requests, and every answer of the generator is used in full. Bound: h is read
//   back, from L2 where it still lies there.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<DropoutAddNormArgs> registered{"pack", /*min_sm=*/80, takes_packs<DropoutAddNormArgs>,
                                              launch_packs<OfDropoutSum, DropoutAddNormArgs>};

}  // namespace
}  // namespace warpsmith
