// RMS norm, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, which hold their slice of the weight in registers
//   for all rows to come instead of fetching it from L2 for each, and read rows ahead while they finish the one before.
//   Bound: DRAM.
#include "norm/rms_norm/row.cuh"
#include "row/cluster.cuh"

namespace warpsmith {
namespace {

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype,
               [&]<class T, class W>() { launch_cluster(RmsNorm<T, W>(a), stream, ClusterTiles{}); });
}

const char* takes(const RmsNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostClusterBytes ? nullptr : "needs rows of at most 1 MiB";
}

bool suits(const RmsNormArgs& a) { return a.cols * size_of(a.dtype) > kMostRowBytes; }

const Register<RmsNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
