// Group norm backward of contiguous tensors, x and grad of a group held in a block's shared memory.
//   Against `naive`: both are read once, in 128-bit accesses. The channels' sums, from which the group's follow, are
//   left in a small workspace, and a second, short kernel adds them up to dw and db in a fixed order. Bound: DRAM,
//   until one group fills a multiprocessor.
#include "norm/group_norm/backward/resident.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kMostBytes = 32 * 1024;  // of x: with grad and the sums, what every GPU from sm_80 on grants a block

const char* takes(const GroupNormBackwardArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  if (a.shape.group_channels() > kMostResidentChannels) return "needs groups of at most 1024 channels";
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 32 KiB";
}

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  launch_resident<false>(a, GradSpread(a, 1), "shared", stream);
}

const Register<GroupNormBackwardArgs> registered{"shared", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
