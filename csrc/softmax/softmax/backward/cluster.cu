// Gradient of softmax, long rows streamed through a thread-block cluster.
//   Against `registers`: the rows are spread over several multiprocessors, which exchange one sum a warp, and are read ahead
//   while those before are finished. Beyond 512 KiB there is no room for three rows: they pass through the ring in chunks,
//   and each that is finished makes room for one of the rows to come. Bound: DRAM.
#include "row/cluster.cuh"
#include "row/stream.cuh"
#include "softmax/softmax/backward/resident.cuh"

namespace warpsmith {
namespace {

struct ClusterList {
  static constexpr ClusterTile tiles[] = {{.threads = 256, .packs = 4, .stages = 3, .min_blocks = 2, .cluster = 8},
                                          {.threads = 512, .packs = 4, .stages = 3, .min_blocks = 1, .cluster = 8},
                                          {.threads = 512, .packs = 4, .stages = 3, .min_blocks = 1, .cluster = 16}};
};
struct StreamList {
  static constexpr StreamTile tiles[] = {
      {.threads = 512, .packs = 8, .chunk_packs = 1, .slots = 13, .min_blocks = 1, .cluster = 16, .anywhere = false}};
};
using ShortTiles = TilesOf<ClusterList>;
using LongTiles = TilesOf<StreamList>;
static_assert(16 * kMostRowPacks<LongTiles> == kMostClusterBytes);

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  visit_gradients(a, [&]<class T, class Gradient>() {
    const SoftmaxBackward<T, Gradient> row(a);
    if (a.cols / kPack<T> <= kMostRowPacks<ShortTiles>) {
      launch_cluster(row, stream, ShortTiles{});
    } else {
      launch_stream(row, stream, LongTiles{});
    }
  });
}

const char* takes(const SoftmaxBackwardArgs& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<kMostClusterBytes>(a.cols, a.dtype)});
}

bool suits(const SoftmaxBackwardArgs& a) { return a.cols * size_of(a.dtype) > kMostRowBytes2; }

const Register<SoftmaxBackwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
