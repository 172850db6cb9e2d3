// Softmax, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, which exchange one maximum and one sum a warp, and
//   rows are read ahead while the one before is finished. Bound: DRAM; beyond 256 KiB there are as many partial results
//   as one warp can just merge, and rows pass in halves, so that more of the next are on their way. Bound there:
//   exponentials.
#include "row/cluster.cuh"
#include "row/stream.cuh"
#include "softmax/softmax/row.cuh"

namespace warpsmith {
namespace {

// Up to 224 KiB two clusters share a multiprocessor; above, more rows on their way are worth more.
struct ClusterList {
  static constexpr ClusterTile tiles[] = {{.threads = 448, .packs = 4, .stages = 3, .min_blocks = 2, .cluster = 8},
                                          {.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 8}};
};
constexpr StreamTile in_halves(int cluster) {
  return {
      .threads = 512, .packs = 8, .chunk_packs = 4, .slots = 6, .min_blocks = 1, .cluster = cluster, .anywhere = false};
}
struct StreamList {
  static constexpr StreamTile tiles[] = {in_halves(8), in_halves(16)};
};
using ShortTiles = TilesOf<ClusterList>;
using LongTiles = TilesOf<StreamList>;
static_assert(16 * kMostRowPacks<LongTiles> == kMostClusterBytes);

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() {
    const Softmax<T, Result> row(a);
    if (a.cols / kPack<T> <= kMostRowPacks<ShortTiles>) {
      launch_cluster(row, stream, ShortTiles{});
    } else {
      launch_stream(row, stream, LongTiles{});
    }
  });
}

const char* takes(const SoftmaxArgs& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<kMostClusterBytes>(a.cols, a.dtype)});
}

bool suits(const SoftmaxArgs& a) { return a.cols * size_of(a.dtype) > kMostRowBytes; }

const Register<SoftmaxArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
