// Backward of bias, scale, mask, softmax and dropout, the row in the registers of a block.
//   Against `warp`: rows that a warp cannot hold, or of which it leaves a multiprocessor too few, joined through shared
//   memory behind one barrier. Bound: as there.
#include "softmax/bias_scale_mask_softmax_dropout_backward/row.cuh"

namespace warpsmith {
namespace {

// Of the lengths that matter most, blocks are whole.
template <int threads, int packs, int min_blocks>
using WholeTile = LogitTile<threads, 0, packs, min_blocks, true, false>;
// A bias takes registers, which two packs a thread leave to it.
template <bool biased>
using HalfTiles = std::tuple<std::conditional_t<biased, WholeTile<128, 2, 8>, WholeTile<64, 4, 12>>,
                             WholeTile<128, 4, 5>, LogitTile<512, 0, 2, 2>, LogitTile<512, 0, 4, 1>>;
using FloatTiles = std::tuple<WholeTile<64, 4, 16>, WholeTile<128, 4, 8>, LogitTile<512, 0, 2, 2>,
                              LogitTile<512, 0, 4, 1>, LogitTile<1024, 0, 4, 1>>;
constexpr int64_t kMostCols = 16384, kMostWarpBytes = 2048;  // a warp holds longer ones too, but few
static_assert(std::tuple_element_t<3, HalfTiles<true>>::most_packs * 8 == kMostCols);
static_assert(std::tuple_element_t<4, FloatTiles>::most_packs * 4 == kMostCols);

template <class T, class Biased, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    bias_scale_mask_softmax_dropout_backward_block_kernel(const BiasScaleMaskSoftmaxDropoutBackwardRows<T> v) {
  __shared__ GradientSums partial[kWarp];
  dropout_backward_row<Tile, Biased>(
      v, [&](const GradientSums& own) { return block_sums<Tile::threads / kWarp>(own, partial); });
}

const char* takes(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (const char* reason = needs_grid(a.logits.rows)) return reason;
  return a.logits.cols <= kMostCols ? nullptr : "needs rows of at most 16384 columns";
}

bool suits(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  return a.logits.cols * size_of(a.logits.dtype) > kMostWarpBytes;
}

void launch(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a, cudaStream_t stream) {
  visit_logits(a.logits, [&]<class T, class Biased>() {
    using Tiles = std::conditional_t<sizeof(T) == 2, HalfTiles<Biased::value>, FloatTiles>;
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&bias_scale_mask_softmax_dropout_backward_block_kernel<T, Biased, Tile>>(
          config, stream, BiasScaleMaskSoftmaxDropoutBackwardRows<T>(a));
    });
  });
}

const Register<BiasScaleMaskSoftmaxDropoutBackwardArgs> registered{"block", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
