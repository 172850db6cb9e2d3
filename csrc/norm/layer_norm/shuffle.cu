// Layer norm, a block per row, summed by warp shuffles.
//   Against `tree`: lanes exchange registers instead of shared memory, so one barrier replaces eight at each of the three
//   sums, and short rows get fewer threads. Bound: the number of load instructions, one value each.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<LayerNormArgs> registered{"shuffle", /*min_sm=*/80, takes_any<LayerNormArgs>,
                                         launch_single<OfX, LayerNormArgs>};

}  // namespace
}  // namespace warpsmith
