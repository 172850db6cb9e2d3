// RMS norm, a block per row, summed by a tree in shared memory.
//   Sweep one squares and sums, sweep two normalises. Half of the threads drop out at every level of the tree, each
//   level behind a barrier of the whole block. Bound: barriers on short rows, scalar accesses on long ones.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<RmsNormArgs> registered{"tree", /*min_sm=*/80, takes_any<RmsNormArgs>, launch_tree<OfX, RmsNormArgs>,
                                       suits_y_alone};

}  // namespace
}  // namespace warpsmith
