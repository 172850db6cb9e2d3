// Gradient of softmax, long rows streamed through a thread-block cluster.
//   Against `registers`: the rows are spread over several multiprocessors, which exchange one sum a warp, and are read ahead
//   while those before are finished. Bound: DRAM; f32 rows beyond 512 KiB leave room for one row only, so loads pause
//   while it is reduced.
#include "row/cluster.cuh"
#include "softmax/softmax_backward/resident.cuh"

namespace warpsmith {
namespace {

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  visit_gradients(
      a, [&]<class T, class Gradient>() { launch_cluster(SoftmaxBackward<T, Gradient>(a), stream, ClusterTiles2{}); });
}

const char* takes(const SoftmaxBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostClusterBytes ? nullptr : "needs rows of at most 1 MiB";
}

bool suits(const SoftmaxBackwardArgs& a) { return a.cols * size_of(a.dtype) > kMostRowBytes2; }

const Register<SoftmaxBackwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
