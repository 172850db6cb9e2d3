// Backward of bias, scale, mask, softmax and dropout, the row in the registers of a block.
//   Against `warp`: rows that a warp cannot hold, or of which it leaves a multiprocessor too few, joined through shared
//   memory behind one barrier. Bound: as there.
#include "softmax/scaled_masked_softmax/dropout_backward/register_rows.cuh"

namespace warpsmith {
namespace {

// Of the lengths that matter most, blocks are whole.
template <int threads, int packs, int min_blocks>
using WholeTile = LogitTile<threads, 0, packs, min_blocks, true, false>;
// A bias of f32 takes registers, which two packs a thread leave to it.
template <class B>
using HalfTiles = std::conditional_t<
    std::is_same_v<B, float>,
    std::tuple<WholeTile<128, 2, 8>, WholeTile<128, 4, 5>, LogitTile<512, 0, 2, 2>, LogitTile<512, 0, 4, 1>>,
    std::tuple<WholeTile<64, 4, 12>, WholeTile<128, 4, 6>, LogitTile<512, 0, 2, 2>, LogitTile<512, 0, 4, 1>>>;
using FloatTiles = std::tuple<WholeTile<64, 4, 16>, WholeTile<128, 4, 8>, LogitTile<512, 0, 2, 2>,
                              LogitTile<512, 0, 4, 1>, LogitTile<1024, 0, 4, 1>>;
constexpr int64_t kMostWarpBytes = 2048;  // a warp holds longer ones too, but few
static_assert(std::tuple_element_t<3, HalfTiles<void>>::most_packs * 8 == kMostBlockCols);
static_assert(std::tuple_element_t<4, FloatTiles>::most_packs * 4 == kMostBlockCols);

template <class T, class B, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    bias_scale_mask_softmax_dropout_backward_block_kernel(const RegisterRows<T> v) {
  __shared__ SharedSums shared;
  dropout_backward_row<Tile, B>(
      v, [&](const GradientSums& own, bool peaked) { return block_sums<Tile>(own, peaked, shared); });
}

const char* takes(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (const char* reason = needs_grid_rows(a.logits.rows)) return reason;
  return a.logits.cols <= kMostBlockCols ? nullptr : "needs rows of at most 16384 columns";
}

bool suits(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  return a.logits.cols * size_of(a.logits.dtype) > kMostWarpBytes;
}

void launch(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a, cudaStream_t stream) {
  visit_bias(a.logits, [&]<class T, class B>() {
    using Tiles = std::conditional_t<sizeof(T) == 2, HalfTiles<B>, FloatTiles>;
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&bias_scale_mask_softmax_dropout_backward_block_kernel<T, B, Tile>>(config, stream,
                                                                                            RegisterRows<T>(a));
    });
  });
}

const Register<BiasScaleMaskSoftmaxDropoutBackwardArgs> registered{"block", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
