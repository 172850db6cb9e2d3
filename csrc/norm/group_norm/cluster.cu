// Group norm of contiguous tensors, a group held in the registers of a thread-block cluster.
//   Against `registers`: slices stay so small that every multiprocessor holds three or four of them, whatever the
//   group; what registers have no room for waits in shared memory, and one exchange joins the moments. Bound: DRAM.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/group_norm/slices.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kRegisterBytes = 80 * 1024;  // up to here `registers` has two groups on a multiprocessor
constexpr int64_t kSpreadBytes = 64 * 1024;    // up to here `spread` does better by few groups

// Measured on an H200, at the longest groups of the second and of the last two.
using Tiles = std::tuple<SliceTile<256, 6, 0, 0, 4, 4>, SliceTile<256, 10, 5, 5, 4, 4>, SliceTile<256, 10, 5, 5, 4, 8>,
                         SliceTile<256, 16, 8, 7, 3, 8>, SliceTile<256, 16, 8, 7, 3, 16>>;
constexpr int64_t kMostBytes = sizeof(uint4) * kMostRowPacks<Tiles>;
static_assert(kMostBytes == 1024 * 1024, "what `takes` says");
static_assert(detail::full_packs_are_full(0, Tiles{}), "a tile's full packs must fit every group it is given");

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation,
                    [&]<class T, class Activation>() { launch_slices(GroupNorm<T, Activation>(a), stream, Tiles{}); });
}

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 1 MiB";
}

bool suits(const GroupNormArgs& a) {
  return a.row_bytes() > kRegisterBytes || (a.shape.is_few() && a.row_bytes() > kSpreadBytes);
}

const Register<GroupNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
