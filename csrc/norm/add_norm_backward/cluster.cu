// Residual norms backward, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of weight, dw and db in registers, so rows of any practical
//   length are read once; the row's sums travel through distributed shared memory by stores that signal their own arrival.
//   Bound: DRAM; the longest rows leave room for one row in the ring only, so loads pause while that row is reduced.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/add_norm_backward/persistent.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = AddNormBackwardTile<numbers...>;

using RmsHalfTiles = std::tuple<Tile<512, 0, 2, 2, 2, 2>, Tile<512, 0, 2, 2, 2, 4>, Tile<512, 0, 2, 2, 2, 8>,
                                Tile<512, 0, 2, 2, 2, 16>, Tile<512, 0, 4, 2, 1, 16>>;
using LayerHalfTiles = std::tuple<Tile<512, 0, 2, 3, 1, 2>, Tile<512, 0, 2, 3, 1, 4>, Tile<512, 0, 2, 3, 1, 8>,
                                  Tile<512, 0, 2, 3, 1, 16>, Tile<512, 0, 4, 2, 1, 16>>;
using FloatTiles = std::tuple<Tile<512, 0, 4, 2, 1, 2>, Tile<512, 0, 4, 2, 1, 4>, Tile<512, 0, 4, 2, 1, 8>,
                              Tile<512, 0, 4, 2, 1, 16>, Tile<512, 0, 8, 1, 1, 16>>;
template <class Types>
using TilesFor = std::conditional_t<sizeof(typename Types::H) == 4, FloatTiles,
                                    std::conditional_t<Types::kLayer, LayerHalfTiles, RmsHalfTiles>>;

void launch(const AddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(a, [&]<class Types>() {
    static_assert(Types::kWidth * kMostPacksOf<TilesFor<Types>> == 262144, "one limit for every dtype");
    launch_smallest_tile(a, AddNormBackwardRows<Types>(a), stream, TilesFor<Types>{});
  });
}

const char* takes(const AddNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= 262144 ? nullptr : "needs at most 262144 columns";
}

bool suits(const AddNormBackwardArgs& a) { return a.cols > 8192; }

const Register<AddNormBackwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
