// Group norm backward of contiguous tensors, x and grad of a group spread over a thread-block cluster.
//   Against `shared`: slices stay small enough for three blocks on a multiprocessor; two exchanges through distributed
//   shared memory join first the moments, then the sums of the gradient. Bound: DRAM, until even 16 slices fill their
//   multiprocessors.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/group_norm/backward/resident.cuh"

namespace warpsmith {
namespace {

static_assert(kMostResidentBlocks == kMostClusterBlocks, "the workspace has room for every block's sums");

constexpr int64_t kMostSlice = 96 * 1024, kMostBytes = kMostClusterBlocks * kMostSlice;  // of x
constexpr int64_t kGoodSlice = 34 * 1024;    // three of them fit a multiprocessor
constexpr int64_t kLeastSlice = 8 * 1024;    // less is not worth another block
constexpr int64_t kEnoughBlocks = 256;       // two for each multiprocessor of an H100, or nearly
constexpr int64_t kSharedBytes = 32 * 1024;  // up to here `shared` holds the group
constexpr int64_t kWorthwhile = 16 * 1024;   // a group of fewer bytes is not spread

int cluster_size(const GroupNormBackwardArgs& a) {
  const int64_t bytes = a.row_bytes(), rows = a.shape.rows();
  int cluster = 2;
  while (cluster < kMostClusterBlocks && bytes > cluster * kGoodSlice) cluster *= 2;
  while (cluster < kPortableCluster && rows * cluster < kEnoughBlocks && bytes > 2 * cluster * kLeastSlice) {
    cluster *= 2;
  }
  return cluster;
}

const char* takes(const GroupNormBackwardArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  if (a.shape.group_channels() > kMostResidentChannels) return "needs groups of at most 1024 channels";
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 1.5 MiB";
}

bool suits(const GroupNormBackwardArgs& a) {
  if (a.dtype != Dtype::f32 && a.row_bytes() > kMostHalfBytes) return false;
  return a.row_bytes() > kSharedBytes || (a.shape.is_few() && a.row_bytes() > kWorthwhile);
}

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  launch_resident<true>(a, GradSpread(a, cluster_size(a)), "cluster", stream);
}

const Register<GroupNormBackwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
