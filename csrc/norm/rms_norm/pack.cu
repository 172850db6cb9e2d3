// RMS norm, one 128-bit access at a time, two sweeps.
//   Against `unroll`: one load brings 16 bytes, so the memory system sees the fewest, widest requests. Rows of any
//   length that packs tile. Bound: the row is read twice, the second time from L2 where it still lies there.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<RmsNormArgs> registered{"pack", /*min_sm=*/80, takes_packs<RmsNormArgs>, launch_packs<OfX, RmsNormArgs>};

}  // namespace
}  // namespace warpsmith
