// Residual norms backward, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of dw and db in registers, so rows of any practical length
//   are read once. A row passes through shared memory in chunks, and each that is finished makes room for another: loads
//   never pause while the row's sums travel through distributed shared memory. Bound: DRAM; layer norm at 16 bits:
//   instructions.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/add_norm_backward/cluster.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = PositionalChunkTile<numbers...>;

using RmsHalfTiles = std::tuple<Tile<512, 2, 6, 0, 2>, Tile<512, 2, 6, 0, 4>, Tile<512, 4, 6, 1, 4>,
                                Tile<512, 4, 6, 1, 8>, Tile<512, 4, 6, 1, 16>>;
// No registers are left for weights.
template <int depth, int shelf>
using LayerHalfTiles =
    std::tuple<Tile<512, 2, 6, 1, 2>, Tile<512, 4, depth, 1, 2, 0, shelf>, Tile<512, 4, depth, 1, 4, 0, shelf>,
               Tile<512, 4, depth, 1, 8, 0, shelf>, Tile<512, 4, 4, 2, 16, 0, shelf>>;
using RmsFloatTiles = std::tuple<Tile<512, 4, 6, 1, 2>, Tile<512, 4, 6, 1, 4>, Tile<512, 4, 6, 1, 8>,
                                 Tile<512, 4, 6, 1, 16>, Tile<512, 8, 3, 1, 16>>;
using LayerFloatTiles = std::tuple<Tile<512, 4, 6, 1, 2>, Tile<512, 4, 6, 1, 4>, Tile<512, 4, 6, 1, 8>,
                                   Tile<256, 16, 6, 1, 8, 12, 4>, Tile<256, 16, 6, 1, 16, 12, 4>>;
template <class Types>
using LayerHalfTilesFor =
    std::conditional_t<sizeof(typename Types::W) == 2, LayerHalfTiles<4, 4>, LayerHalfTiles<5, 1>>;
template <class Types>
using TilesFor = std::conditional_t<sizeof(typename Types::H) == 2,
                                    std::conditional_t<Types::kLayer, LayerHalfTilesFor<Types>, RmsHalfTiles>,
                                    std::conditional_t<Types::kLayer, LayerFloatTiles, RmsFloatTiles>>;

void launch(const AddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(
      a, [&]<class Types>() { launch_cluster(a, AddNormBackwardRows<Types>(a), stream, TilesFor<Types>{}); });
}

const char* takes(const AddNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= 262144 ? nullptr : "needs at most 262144 columns";
}

bool suits(const AddNormBackwardArgs& a) { return a.cols > 8192; }

const Register<AddNormBackwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
