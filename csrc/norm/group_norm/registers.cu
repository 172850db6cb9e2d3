// Group norm of contiguous tensors, the group held in registers.
//   Against `pack`: x is read once. A thread holds no more packs than keep a multiprocessor full of blocks, so that groups
//   that read overlap groups that write; small groups share a warp, and their blocks take their places while the kernel
//   before ends. Bound: DRAM, until one group fills a multiprocessor.
#include "norm/group_norm/slices.cuh"

namespace warpsmith {
namespace {

// As RowTiles, in larger steps: activation and affine map ask for more registers than a weight does.
struct SmallGroups {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 4, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 16, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 16, .packs = 2, .min_blocks = 10},
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 10},
      {.threads = 512, .packs = 2, .min_blocks = 3},
  };
};
using SmallTiles = TilesOf<SmallGroups>;
using Tiles = std::tuple<SliceTile<256, 8, 4, 1, 4, 1>, SliceTile<512, 10, 4, 2, 2, 1>, SliceTile<1024, 8, 5, 0, 1, 1>>;
constexpr int64_t kSmallPacks = kMostRowPacks<SmallTiles>, kMostBytes = 16 * kMostRowPacks<Tiles>;
static_assert(kMostBytes == 128 * 1024, "what `takes` says");
static_assert(detail::full_packs_are_full(kSmallPacks, Tiles{}),
              "a tile's full packs must fit every group it is given");

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNorm<T, Activation> groups(a);
    if (!launch_row(groups, stream, SmallTiles{})) launch_slices(groups, stream, Tiles{});
  });
}

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 128 KiB";
}

const Register<GroupNormArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
