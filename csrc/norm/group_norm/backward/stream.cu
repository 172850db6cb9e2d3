// Group norm backward of contiguous tensors, groups streamed through a thread-block cluster.
//   Against `cluster`: clusters are persistent and have x and grad copied ahead while they work on the group before;
//   the gradient of the activation stays in registers between the sums and dx. Bound: in f32 DRAM, as long as groups
//   are many; 16-bit gradients compute longer than they wait, and of long groups `split` is faster.
// CUDA C++ Programming Guide, "Thread Block Clusters", "Distributed Shared Memory" and "Asynchronous Data Copies".

#include "host/min_max.h"
#include "norm/group_norm/backward/stream.cuh"

namespace warpsmith {
namespace {

// As many packs as leave gz in registers, in f32.
using WideTiles =
    std::tuple<GradTile<448, 3, 2, 4>, GradTile<448, 3, 2, 8>, GradTile<832, 5, 1, 8>, GradTile<832, 5, 1, 16>>;
using NarrowTiles =
    std::tuple<GradTile<448, 3, 2, 4>, GradTile<448, 3, 2, 8>, GradTile<704, 4, 1, 8>, GradTile<704, 3, 1, 16>>;
template <class T>
using Tiles = std::conditional_t<std::is_same_v<T, float>, WideTiles, NarrowTiles>;
constexpr int64_t kMostValues = int64_t{1} << 18;  // of a group

const char* takes(const GroupNormBackwardArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  if (a.shape.spatial * size_of(a.dtype) % (16 * kWarp) != 0) return "needs channels of a multiple of 512 bytes";
  if (a.activation == GroupActivation::mish) return "needs no activation, or SiLU";
  return a.shape.row_size() <= kMostValues ? nullptr : "needs groups of at most 2^18 values";
}

// Measured on an H200: below, `cluster` is as fast or faster, and beyond, `split` is for 16-bit gradients.
bool suits(const GroupNormBackwardArgs& a) {
  if (a.dtype == Dtype::f32) return a.row_bytes() > 160 * 1024;
  return a.row_bytes() >= 64 * 1024 && a.row_bytes() <= kMostHalfBytes;
}

// Through the first tile that holds the group.
template <class T, class Activation, class... Tile>
void launch_tiles(const GroupNormBackwardArgs& a, cudaStream_t stream, std::tuple<Tile...> tiles) {
  static_assert(max_of(Tile::most_packs...) * kPack<T> >= kMostValues, "some tile must hold what `takes` lets in");
  with_first_tile(tiles, a.row_bytes() / 16, [&]<class One>() {
    PartialSums sums = partial_sums(a, "stream", One::cluster);
    if (a.dw == nullptr && a.db == nullptr) sums.data = nullptr;
    launch_grad_tile<T, Activation, One>(a, sums, stream);
    if (sums.data != nullptr) sum_parameters(a, sums, stream);
  });
}

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.activation == GroupActivation::silu) return launch_tiles<T, GroupSilu>(a, stream, Tiles<T>{});
    launch_tiles<T, NoActivation>(a, stream, Tiles<T>{});
  });
}

const Register<GroupNormBackwardArgs> registered{"stream", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
