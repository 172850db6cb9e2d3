// Residual norms with dropout, long rows split over a thread-block cluster.
//   Against `registers`: rows of any practical length, in chunks that make room for the next at once, as `cluster`
//   of add_norm has it. Bound: DRAM and, at 16 bits, the generator.
#include "norm/forward/chunks.cuh"

namespace warpsmith {
namespace {

const Register<DropoutAddNormArgs> registered{"cluster",
                                              /*min_sm=*/90,
                                              needs_sum_chunks<DropoutAddNormArgs>,
                                              launch_norm_chunks<OfDropoutSum, DropoutAddNormArgs>,
                                              suits_sum_chunks<DropoutAddNormArgs>,
                                              /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
