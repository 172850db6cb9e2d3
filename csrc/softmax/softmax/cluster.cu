// Softmax, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, which exchange one maximum and one sum a warp, and
//   rows are read ahead while the one before is finished. Bound: DRAM; beyond 256 KiB as many warps exchange as a single one
//   had better deal with, and rows pass in halves, so that more of the next are on their way. Bound there: exponentials.
#include "row/cluster.cuh"
#include "row/stream.cuh"
#include "softmax/softmax/resident.cuh"

namespace warpsmith {
namespace {

// Up to 224 KiB two clusters share a multiprocessor; above, more rows on their way are worth more.
using ShortTiles = std::tuple<ClusterTile<448, 4, 3, 2, 8>, ClusterTile<512, 4, 4, 1, 8>>;
using LongTiles = std::tuple<StreamTile<512, 8, 4, 6, 1, 8, false>, StreamTile<512, 8, 4, 6, 1, 16, false>>;
static_assert(16 * kMostStreamedPacks<LongTiles> == kMostClusterBytes);

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_answers(a, [&]<class T, class Answer>() {
    const Softmax<T, Answer> row(a);
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
