// Group norm of contiguous tensors, the group spread over the shared memory of a thread-block cluster.
//   Against `shared`: slices stay small enough for three blocks on a multiprocessor, so that the reads of one group
//   overlap the writes of another; one exchange of moments through distributed shared memory joins them. Few groups
//   spread over more multiprocessors. Bound: DRAM, until even 16 slices fill their multiprocessors.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/group_norm/resident.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kMostSlice = 192 * 1024, kMostBytes = kMostClusterBlocks * kMostSlice;
constexpr int64_t kGoodSlice = 72 * 1024;   // three of them fit a multiprocessor
constexpr int64_t kLeastSlice = 8 * 1024;   // less is not worth another block
constexpr int64_t kEnoughBlocks = 256;      // two for each multiprocessor of an H100, or nearly
constexpr int64_t kFewGroups = 132;         // fewer leave multiprocessors without one
constexpr int64_t kWorthwhile = 16 * 1024;  // a group of fewer bytes is not spread

GroupSpread spread(const GroupNormArgs& a) {
  const int64_t bytes = a.row_bytes(), rows = a.shape.rows();
  int cluster = 2;
  while (cluster < kMostClusterBlocks && bytes > cluster * kGoodSlice) cluster *= 2;
  while (cluster < kPortableCluster && rows * cluster < kEnoughBlocks && bytes > 2 * cluster * kLeastSlice) {
    cluster *= 2;
  }
  return {.cluster = cluster, .slice = static_cast<int>(ceil_of(bytes / 16, cluster))};
}

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_packed_groups(a)) return reason;
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 3 MiB";
}

bool suits(const GroupNormArgs& a) {
  return a.row_bytes() > kGoodSlice || (a.shape.rows() < kFewGroups && a.row_bytes() > kWorthwhile);
}

void launch(const GroupNormArgs& a, cudaStream_t stream) { launch_resident<true>(a, spread(a), stream); }

const Register<GroupNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
