// Layer norm backward from the output, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of dw and db in registers, so rows of any practical
//   length are read once. A row passes through shared memory in chunks, and each that is finished makes room for
//   another: loads never pause while the row's sums travel through distributed shared memory. f32 rows leave xhat and
//   grad * weight in the ring, so that nothing is computed twice; of the longest, most of the weight and the bias comes
//   from L2 with every row. Sixteen warps hide what eight with 1 / weight in registers do not. Bound: DRAM.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/layer_norm_backward_from_output/cluster.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = ColumnTile<numbers...>;

using HalfTiles = std::tuple<Tile<512, 2, 6, 1, 2, 2, 2, 2>, Tile<512, 4, 4, 1, 2>, Tile<512, 4, 4, 1, 4>,
                             Tile<512, 4, 4, 1, 8>, Tile<512, 4, 4, 1, 16>>;
using MixedTiles = std::tuple<Tile<512, 2, 6, 1, 2>, Tile<512, 2, 6, 1, 4>, Tile<512, 2, 6, 1, 8>,
                              Tile<512, 2, 6, 1, 16>, Tile<512, 4, 4, 1, 16, 0, 0, 0, 2>>;
using FloatTiles = std::tuple<Tile<512, 4, 5, 1, 2>, Tile<512, 4, 5, 1, 4>, Tile<512, 4, 5, 1, 8>,
                              Tile<512, 4, 5, 1, 16>, Tile<512, 8, 3, 1, 16, 0, 0, 0, 6>>;
constexpr int64_t kMostCols = 262144;
static_assert(kMostCols == 8 * kMostPacksOf<HalfTiles> && kMostCols == 8 * kMostPacksOf<MixedTiles> &&
                  kMostCols == 4 * kMostPacksOf<FloatTiles>,
              "one limit for every dtype");
constexpr int64_t kWorthwhileCols = 8192;

void launch(const LayerNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using ForHalves = std::conditional_t<sizeof(W) == 2, HalfTiles, MixedTiles>;
    using Tiles = std::conditional_t<sizeof(T) == 2, ForHalves, FloatTiles>;
    const int64_t clusters =
        launch_chunks(ChunkedLayerNormBackwardFromOutput<T, W>(a), a.cols / kPack<T>, a.most_partials, stream, Tiles{});
    sum_partials<W>(a, clusters, stream);
  });
}

const char* takes(const LayerNormBackwardFromOutputArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= kMostCols ? nullptr : "needs at most 262144 columns";
}

bool suits(const LayerNormBackwardFromOutputArgs& a) { return a.cols > kWorthwhileCols; }

const Register<LayerNormBackwardFromOutputArgs> registered{"cluster", /*min_sm=*/90, takes,
                                                           launch,    suits,         /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
