// Layer norm, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, which hold their slice of weight and bias in registers
//   for all rows to come instead of fetching it from L2 for each, and read rows ahead while they finish the one before.
//   Bound: DRAM.
#include "norm/forward/registers.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kWorthwhileBytes = 64 * 1024;

bool suits(const LayerNormArgs& a) { return row_bytes(a) > kWorthwhileBytes; }

const Register<LayerNormArgs> registered{
    "cluster", /*min_sm=*/90,    needs_lone_rows<kMostClusterBytes, LayerNormArgs>, launch_norm_cluster<LayerNormArgs>,
    suits,     /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
