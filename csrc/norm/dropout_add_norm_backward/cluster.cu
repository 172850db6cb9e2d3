// Residual norms with dropout backward, long rows split over a thread-block cluster.
//   Against `registers`: rows of any practical length are read once, as `cluster` of add_norm_backward has it. Bound:
//   DRAM and, at 16 bits, the generator.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/add_norm_backward/cluster.cuh"
#include "norm/dropout_add_norm_backward/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = ChunkTile<numbers...>;

using HalfTiles = std::tuple<Tile<256, 8, 8, 1, 2, 0>, Tile<256, 8, 8, 1, 8, 0>, Tile<256, 8, 8, 1, 16, 0>>;
using FloatTiles = std::tuple<Tile<512, 4, 6, 1, 2, 0>, Tile<512, 4, 6, 1, 8, 0>, Tile<256, 16, 6, 1, 16, 0>>;
template <class Types>
using TilesFor = std::conditional_t<sizeof(typename Types::H) == 2, HalfTiles, FloatTiles>;

void launch(const DropoutAddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(
      a, [&]<class Types>() { launch_cluster(a, DropoutAddNormBackwardRows<Types>(a), stream, TilesFor<Types>{}); });
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
