// Residual norms with dropout backward, long rows split over a thread-block cluster.
//   Against `registers`: rows of any practical length are read once, as `cluster` of add_norm_backward has it. Philox is
//   asked where dh is at hand, and what the packs of a row share on the way from there to dx is found once a row: that
//   leaves registers for as many warps as without dropout. Bound: DRAM; layer norm at 16 bits: instructions.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/add_norm_backward/cluster.cuh"
#include "norm/dropout_add_norm_backward/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = PositionalChunkTile<numbers...>;

// Of columns, a thread holds in registers what the generator leaves room for.
template <int depth, int held, int shelf>
using RmsHalfTiles =
    std::tuple<Tile<512, 2, 6, 0, 2>, Tile<512, 4, depth, 1, 2, held, shelf>, Tile<512, 4, depth, 1, 4, held, shelf>,
               Tile<512, 4, depth, 1, 8, held, shelf>, Tile<512, 4, depth, 1, 16, held, shelf>>;
template <int shelf, int last_shelf>
using LayerHalfTiles =
    std::tuple<Tile<512, 2, 6, 1, 2>, Tile<512, 4, 4, 1, 2, 0, shelf>, Tile<512, 4, 4, 1, 4, 0, shelf>,
               Tile<512, 4, 4, 1, 8, 0, shelf>, Tile<512, 4, 4, 2, 16, 0, last_shelf>>;
using RmsFloatTiles = std::tuple<Tile<512, 4, 6, 1, 2>, Tile<512, 4, 6, 1, 4>, Tile<512, 4, 6, 1, 8>,
                                 Tile<512, 4, 6, 1, 16>, Tile<512, 8, 3, 1, 16>>;
using LayerFloatTiles =
    std::tuple<Tile<512, 4, 5, 1, 2, 1, 3>, Tile<512, 4, 5, 1, 4, 1, 3>, Tile<512, 4, 5, 1, 8, 1, 3>,
               Tile<256, 16, 6, 1, 8, 12, 4>, Tile<256, 16, 6, 1, 16, 12, 4>>;
template <class Types>
using RmsTilesFor = std::conditional_t<
    sizeof(typename Types::H) == 4, RmsFloatTiles,
    std::conditional_t<sizeof(typename Types::W) == 2, RmsHalfTiles<5, 2, 2>, RmsHalfTiles<5, 3, 1>>>;
template <class Types>
using LayerTilesFor =
    std::conditional_t<sizeof(typename Types::H) == 4, LayerFloatTiles,
                       std::conditional_t<sizeof(typename Types::W) == 2, LayerHalfTiles<4, 4>, LayerHalfTiles<3, 2>>>;
template <class Types>
using TilesFor = std::conditional_t<Types::kLayer, LayerTilesFor<Types>, RmsTilesFor<Types>>;

void launch(const DropoutAddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(
      a, [&]<class Types>() { launch_cluster(a, DropoutAddNormBackwardWalk<Types>(a), stream, TilesFor<Types>{}); });
}

const char* takes(const DropoutAddNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= 262144 ? nullptr : "needs at most 262144 columns";
}

bool suits(const DropoutAddNormBackwardArgs& a) { return a.cols > 8192; }

const Register<DropoutAddNormBackwardArgs> registered{"cluster", /*min_sm=*/90, takes,
                                                      launch,    suits,         /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
