// RMS norm backward, persistent blocks with dw in registers.
//   Against `naive`: grad and x are read once. A block keeps its columns' share of dw in registers over all rows it
//   meets, so dw costs one small workspace and a second, short kernel instead of another pass; the next rows are on
//   their way while this one is reduced. Bound: DRAM, until a row needs more registers than a block has.
// Liger and quack sum dw the same way: https://github.com/Dao-AILab/quack
#include "norm/backward_persistent.cuh"
#include "norm/rms_norm_backward/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = BackwardTile<numbers...>;

// 16-bit values take twice the registers of dw per pack, so they get half the packs.
using HalfTiles =
    std::tuple<Tile<256, 8, 1, 3, 4>, Tile<256, 32, 1, 3, 2>, Tile<256, 32, 2, 3, 1>, Tile<128, 32, 4, 2, 2>,
               Tile<128, 0, 2, 3, 3>, Tile<512, 0, 1, 4, 1>, Tile<512, 0, 2, 2, 1>>;
using FloatTiles = std::tuple<Tile<256, 8, 1, 3, 6>, Tile<256, 32, 1, 3, 6>, Tile<256, 32, 2, 3, 4>,
                              Tile<256, 32, 4, 2, 3>, Tile<128, 32, 8, 2, 3>, Tile<512, 0, 4, 3, 1>>;
constexpr int64_t kMostCols = 8 * kMostPacksOf<HalfTiles>;
static_assert(kMostCols == 4 * kMostPacksOf<FloatTiles>, "one limit for every dtype");

void launch(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using Tiles = std::conditional_t<sizeof(T) == 2, HalfTiles, FloatTiles>;
    launch_smallest_tile<RmsNormBackward<T, W>>(a, stream, Tiles{});
  });
}

const char* takes(const RmsNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= kMostCols ? nullptr : "needs at most 8192 columns";
}

const Register<RmsNormBackwardArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
