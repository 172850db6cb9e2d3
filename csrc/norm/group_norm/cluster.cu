// Group norm of contiguous tensors, large groups streamed through a thread-block cluster.
//   Against `registers`: the group is spread over several multiprocessors, which read groups ahead while they finish the
//   one before. Bound: DRAM, as long as groups are many and a cluster holds two of them.
#include "norm/group_norm/resident.cuh"
#include "row/cluster.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kRegisterBytes = 128 * 1024;  // up to here `registers` holds the group

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    launch_cluster(GroupNorm<T, Activation>(a), stream, ClusterTiles{});
  });
}

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  return a.row_bytes() <= kMostClusterBytes ? nullptr : "needs groups of at most 1 MiB";
}

bool suits(const GroupNormArgs& a) { return a.row_bytes() > kRegisterBytes; }

const Register<GroupNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
