// Layer norm backward from the output, persistent blocks with dw and db in registers.
//   Against `naive`: grad and y are read once, as `registers` of layer_norm_backward reads grad and x; with rstd given,
//   two sums over the row remain. The bias is needed, too, so the longest rows keep it and the weight in shared memory.
//   Bound: DRAM.
#include "norm/backward_persistent.cuh"
#include "norm/layer_norm_backward_from_output/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = BackwardTile<numbers...>;

using HalfTiles = std::tuple<Tile<256, 8, 1, 3, 3>, Tile<256, 32, 1, 3, 3>, Tile<256, 32, 2, 3, 2>,
                             Tile<256, 32, 4, 2, 2, 1, 0>, Tile<256, 0, 4, 2, 2, 1, 0>>;
using MixedTiles = std::tuple<Tile<256, 8, 1, 3, 3>, Tile<256, 32, 1, 3, 3>, Tile<256, 32, 2, 3, 2, 1, 0>,
                              Tile<512, 0, 2, 2, 1, 1, 0>>;
using FloatTiles = std::tuple<Tile<256, 8, 1, 3, 4>, Tile<256, 32, 1, 3, 4>, Tile<256, 32, 2, 3, 3>,
                              Tile<256, 32, 4, 2, 2>, Tile<128, 32, 8, 2, 2, 1, 0>, Tile<512, 0, 4, 3, 1>>;
constexpr int64_t kMostCols = 8 * kMostPacksOf<HalfTiles>;
static_assert(kMostCols == 8 * kMostPacksOf<MixedTiles> && kMostCols == 4 * kMostPacksOf<FloatTiles>,
              "one limit for every dtype");

void launch(const LayerNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using ForHalves = std::conditional_t<sizeof(W) == 2, HalfTiles, MixedTiles>;
    using Tiles = std::conditional_t<sizeof(T) == 2, ForHalves, FloatTiles>;
    launch_smallest_tile<LayerNormBackwardFromOutput<T, W>>(a, stream, Tiles{});
  });
}

const char* takes(const LayerNormBackwardFromOutputArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= kMostCols ? nullptr : "needs at most 8192 columns";
}

const Register<LayerNormBackwardFromOutputArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
