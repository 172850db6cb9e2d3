// Residual norms backward, persistent blocks with dw and db in registers.
//   Against `naive`: grad, grad_h and h are read once. A block keeps its columns' share of dw and db in registers over all
//   rows it meets, so these cost one small workspace and a second, short kernel instead of another pass; the next rows are
//   on their way while this one is reduced. Bound: DRAM, until a row needs more registers than a block has.
// Liger and quack sum dw the same way: https://github.com/Dao-AILab/quack
#include "norm/add_norm_backward/persistent.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = AddNormBackwardTile<numbers...>;

// 16-bit values take twice the registers of dw per pack, layer norm takes them for db again.
using RmsHalfTiles =
    std::tuple<Tile<256, 8, 1, 3, 4>, Tile<256, 32, 1, 3, 4>, Tile<256, 32, 2, 2, 3>, Tile<512, 0, 2, 2, 2>>;
using RmsFloatTiles =
    std::tuple<Tile<256, 8, 1, 3, 4>, Tile<256, 32, 1, 3, 4>, Tile<256, 32, 2, 3, 4>, Tile<512, 0, 4, 1, 2>>;
using LayerHalfTiles = std::tuple<Tile<256, 8, 1, 3, 3>, Tile<256, 32, 1, 3, 2>, Tile<256, 32, 2, 2, 2>,
                                  Tile<256, 32, 4, 2, 1>, Tile<256, 0, 2, 2, 2>, Tile<512, 0, 2, 2, 1>>;
using LayerFloatTiles = std::tuple<Tile<256, 8, 1, 3, 4>, Tile<256, 32, 1, 3, 4>, Tile<256, 32, 2, 3, 3>,
                                   Tile<512, 0, 2, 2, 2>, Tile<512, 0, 4, 1, 1>>;
template <class Types>
using TilesFor =
    std::conditional_t<sizeof(typename Types::H) == 2, std::conditional_t<Types::kLayer, LayerHalfTiles, RmsHalfTiles>,
                       std::conditional_t<Types::kLayer, LayerFloatTiles, RmsFloatTiles>>;

void launch(const AddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(a, [&]<class Types>() {
    static_assert(Types::kWidth * kMostPacksOf<TilesFor<Types>> == 8192, "one limit for every dtype");
    launch_smallest_tile(a, AddNormBackwardRows<Types>(a), stream, TilesFor<Types>{});
  });
}

const char* takes(const AddNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= 8192 ? nullptr : "needs at most 8192 columns";
}

const Register<AddNormBackwardArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
