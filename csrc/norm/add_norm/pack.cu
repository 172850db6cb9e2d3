// Residual norms, one 128-bit access at a time.
//   Against `naive`: a load brings 16 bytes, so the memory system sees the fewest, widest requests. Rows of any length
//   that packs tile. Bound: h is read back, from L2 where it still lies there.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<AddNormArgs> registered{"pack", /*min_sm=*/80, takes_packs<AddNormArgs>,
                                       launch_packs<OfSum, AddNormArgs>};

}  // namespace
}  // namespace warpsmith
