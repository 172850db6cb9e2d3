// Scaled masked softmax, a warp per row with the row in its registers.
//   Against `online`: x, bias and mask are read once, the maximum is known before the first exponential, and no barrier
//   is left; short rows share a warp. A causal row neither reads nor computes what lies beyond its diagonal, which is
//   half of the matrix; zeros are all that is left of it. Bound: DRAM.
#include "softmax/scaled_masked_softmax/row.cuh"

namespace warpsmith {
namespace {

template <class Biased>
using HalfTiles =
    std::tuple<LogitTile<128, 8, 1, 12>, LogitTile<128, 16, 1, 12>, LogitTile<128, 32, 1, 12>,
               LogitTile<128, 16, 4, 8, !Biased::value>, LogitTile<128, 32, 4, 8>, LogitTile<128, 32, 8, 4>>;
using FloatTiles = std::tuple<LogitTile<128, 8, 1, 12>, LogitTile<128, 32, 1, 12>, LogitTile<128, 32, 2, 12>,
                              LogitTile<128, 32, 4, 10>, LogitTile<128, 32, 8, 6>, LogitTile<128, 32, 16, 4>>;
static_assert(std::tuple_element_t<5, HalfTiles<std::false_type>>::most_packs * 8 == kWarpCols);
static_assert(std::tuple_element_t<5, FloatTiles>::most_packs * 4 == kWarpCols);

template <class T, class Biased, class Tile>
__global__ void __launch_bounds__(Tile::threads, min_blocks<Tile, Biased>())
    scaled_masked_softmax_warp_kernel(const ScaledMaskedSoftmaxRows<T> v) {
  softmax_row<Tile, Biased>(v, [](const RowTotals& own) { return own; });
}

void launch(const ScaledMaskedSoftmaxArgs& a, cudaStream_t stream) {
  visit_logits(a.logits, [&]<class T, class Biased>() {
    using Tiles = std::conditional_t<sizeof(T) == 2, HalfTiles<Biased>, FloatTiles>;
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&scaled_masked_softmax_warp_kernel<T, Biased, Tile>>(config, stream,
                                                                             ScaledMaskedSoftmaxRows<T>(a));
    });
  });
}

const char* takes(const ScaledMaskedSoftmaxArgs& a) {
  if (const char* reason = needs_packs(a.logits)) return reason;
  if (const char* reason = needs_grid_rows(a.logits.rows)) return reason;
  return a.logits.cols <= kWarpCols ? nullptr : "needs rows of at most 2048 columns";
}

const Register<ScaledMaskedSoftmaxArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
