// RMS norm with rstd, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, as `cluster` of rms_norm does. Bound: DRAM.
#include "norm/rms_norm_with_rstd/row.cuh"
#include "row/cluster.cuh"

namespace warpsmith {
namespace {

void launch(const RmsNormWithRstdArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype,
               [&]<class T, class W>() { launch_cluster(RmsNormWithRstd<T, W>(a), stream, ClusterTiles{}); });
}

const char* takes(const RmsNormWithRstdArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostClusterBytes ? nullptr : "needs rows of at most 1 MiB";
}

bool suits(const RmsNormWithRstdArgs& a) { return a.cols * size_of(a.dtype) > kMostRowBytes; }

const Register<RmsNormWithRstdArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
