// Group norm of contiguous tensors, the group held in a block's shared memory.
//   Against `registers`: shared memory holds more of a group than registers do, and is filled without passing through
//   them, so that a multiprocessor has more bytes on their way. Bound: DRAM, until one group fills a multiprocessor.
#include "norm/group_norm/resident.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kMostBytes = 96 * 1024;      // what every GPU from sm_80 on grants a block
constexpr int64_t kRegisterBytes = 16 * 1024;  // up to here `registers` holds the group

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_packed_groups(a)) return reason;
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 96 KiB";
}

bool suits(const GroupNormArgs& a) { return a.row_bytes() > kRegisterBytes; }

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  launch_resident<false>(a, {.cluster = 1, .slice = static_cast<int>(a.row_bytes() / 16)}, stream);
}

const Register<GroupNormArgs> registered{"shared", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
