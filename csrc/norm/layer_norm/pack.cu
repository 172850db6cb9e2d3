// Layer norm, one 128-bit access at a time, three sweeps.
//   Against `unroll`: one load brings 16 bytes, so the memory system sees the fewest, widest requests. Rows of any
//   length that packs tile. Bound: the row is read three times, from L2 where it still lies there.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<LayerNormArgs> registered{"pack", /*min_sm=*/80, takes_packs<LayerNormArgs>,
                                         launch_packs<OfX, LayerNormArgs>};

}  // namespace
}  // namespace warpsmith
