// Softmax, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, which exchange one maximum and one sum a warp, and
//   rows are read ahead while the one before is finished. Bound: DRAM.
#include "row/cluster.cuh"
#include "softmax/softmax/resident.cuh"

namespace warpsmith {
namespace {

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_answers(a, [&]<class T, class Answer>() { launch_cluster(Softmax<T, Answer>(a), stream, ClusterTiles{}); });
}

const char* takes(const SoftmaxArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostClusterBytes ? nullptr : "needs rows of at most 1 MiB";
}

bool suits(const SoftmaxArgs& a) { return a.cols * size_of(a.dtype) > kMostRowBytes; }

const Register<SoftmaxArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
