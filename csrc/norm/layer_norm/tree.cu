// Layer norm, a block per row, summed by a tree in shared memory.
//   Sweep one finds the mean, sweep two the deviations from it, sweep three normalises. Half of the threads drop out at
//   every level of the tree, each level behind a barrier of the whole block. Bound: barriers on short rows, scalar
//   accesses on long ones.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const Register<LayerNormArgs> registered{"tree", /*min_sm=*/80, takes_any<LayerNormArgs>,
                                         launch_tree<OfX, LayerNormArgs>};

}  // namespace
}  // namespace warpsmith
