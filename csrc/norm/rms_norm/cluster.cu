// RMS norm, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, which hold their slice of the weight in registers
//   for all rows to come instead of fetching it from L2 for each, and read rows ahead while they finish the one before.
//   Bound: DRAM.
#include "norm/forward/registers.cuh"

namespace warpsmith {
namespace {

bool suits(const RmsNormArgs& a) { return row_bytes(a) > kMostRowBytes; }

const Register<RmsNormArgs> registered{
    "cluster", /*min_sm=*/90,    needs_lone_rows<kMostClusterBytes, RmsNormArgs>, launch_norm_cluster<RmsNormArgs>,
    suits,     /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
