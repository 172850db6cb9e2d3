// RMS norm, a block per row, summed by warp shuffles.
//   Against `tree`: lanes exchange registers instead of shared memory, so one barrier replaces eight, and short rows
//   get fewer threads. Bound: the number of load instructions, one value each.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<RmsNormArgs> registered{"shuffle", /*min_sm=*/80, takes_any<RmsNormArgs>,
                                       launch_single<OfX, RmsNormArgs>};

}  // namespace
}  // namespace warpsmith
