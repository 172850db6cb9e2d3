// Layer norm backward, persistent blocks with dw and db in registers.
//   Against `naive`: grad and x are read once. A block keeps its columns' share of dw and db in registers over all rows
//   it meets, so they cost one small workspace and a second, short kernel instead of another pass; the next rows are on
//   their way while this one is reduced. Two gradients take twice the registers of one: longer rows get fewer threads
//   with more packs each, and few instructions per value besides. Bound: DRAM.
// Liger and quack sum dw the same way: https://github.com/Dao-AILab/quack
#include "norm/backward_persistent.cuh"
#include "norm/layer_norm_backward/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = BackwardTile<numbers...>;

// 16-bit values take twice the registers of dw and db per pack, so they get half the packs, and fewer still where the
// weight is f32.
using HalfTiles =
    std::tuple<Tile<256, 8, 1, 3, 4>, Tile<512, 16, 1, 3, 1>, Tile<512, 32, 1, 3, 1>, Tile<256, 32, 2, 4, 1>,
               Tile<256, 32, 4, 2, 1>, Tile<128, 0, 2, 3, 4>, Tile<256, 0, 2, 3, 2>, Tile<512, 0, 2, 3, 1>>;
using MixedTiles = std::tuple<Tile<256, 8, 1, 3, 4>, Tile<512, 16, 1, 3, 1>, Tile<512, 32, 1, 3, 1>,
                              Tile<256, 32, 2, 4, 1>, Tile<512, 0, 2, 3, 1>>;
using FloatTiles = std::tuple<Tile<256, 8, 1, 3, 5>, Tile<256, 32, 1, 3, 5>, Tile<256, 32, 2, 3, 4>,
                              Tile<256, 32, 4, 2, 3>, Tile<128, 32, 8, 2, 3>, Tile<512, 0, 4, 3, 1>>;
constexpr int64_t kMostCols = 8 * kMostPacksOf<HalfTiles>;
static_assert(kMostCols == 8 * kMostPacksOf<MixedTiles> && kMostCols == 4 * kMostPacksOf<FloatTiles>,
              "one limit for every dtype");

void launch(const LayerNormBackwardArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using ForHalves = std::conditional_t<sizeof(W) == 2, HalfTiles, MixedTiles>;
    using Tiles = std::conditional_t<sizeof(T) == 2, ForHalves, FloatTiles>;
    launch_smallest_tile<LayerNormBackward<T, W>>(a, stream, Tiles{});
  });
}

const char* takes(const LayerNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= kMostCols ? nullptr : "needs at most 8192 columns";
}

const Register<LayerNormBackwardArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
