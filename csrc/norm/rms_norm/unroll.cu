// RMS norm, 16 bytes a thread and step as separate loads.
//   Against `shuffle`: a thread has four or eight independent loads in flight before it needs the first, so it waits
//   for memory once per step; any alignment. Bound: memory instructions, one per value.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<RmsNormArgs> registered{"unroll", /*min_sm=*/80, takes_any<RmsNormArgs>,
                                       launch_unrolled<OfX, RmsNormArgs>, suits_y_alone};

}  // namespace
}  // namespace warpsmith
