// Layer norm backward, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of weight, dw and db in registers, so rows of any
//   practical length are read once; what the row adds up to travels through distributed shared memory. Bound: DRAM; of
//   the longest f32 rows the ring holds one and a quarter, so loads run low while a row is reduced.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/backward_persistent.cuh"
#include "norm/layer_norm_backward/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = BackwardTile<numbers...>;

using HalfTiles = std::tuple<Tile<256, 0, 4, 3, 2, 2>, Tile<512, 0, 4, 3, 1, 2>, Tile<512, 0, 4, 3, 1, 4>,
                             Tile<512, 0, 4, 3, 1, 8, 1, 0, 1>, Tile<512, 0, 4, 3, 1, 16, 1, 0, 1>>;
using MixedTiles = std::tuple<Tile<512, 0, 2, 3, 1, 2>, Tile<512, 0, 2, 3, 1, 4>, Tile<512, 0, 2, 3, 1, 8>,
                              Tile<512, 0, 2, 3, 1, 16>, Tile<512, 0, 4, 2, 1, 16, 0>>;
using FloatTiles = std::tuple<Tile<512, 0, 4, 3, 1, 2>, Tile<512, 0, 4, 3, 1, 4>, Tile<512, 0, 4, 3, 1, 8>,
                              Tile<512, 0, 8, 1, 1, 8, 0, 2, 1>, Tile<512, 0, 8, 1, 1, 16, 0, 2, 1>>;
constexpr int64_t kMostCols = 8 * kMostPacksOf<HalfTiles>;
static_assert(kMostCols == 8 * kMostPacksOf<MixedTiles> && kMostCols == 4 * kMostPacksOf<FloatTiles>,
              "one limit for every dtype");
constexpr int64_t kWorthwhileCols = 8192;

void launch(const LayerNormBackwardArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using ForHalves = std::conditional_t<sizeof(W) == 2, HalfTiles, MixedTiles>;
    using Tiles = std::conditional_t<sizeof(T) == 2, ForHalves, FloatTiles>;
    launch_smallest_tile<LayerNormBackward<T, W>>(a, stream, Tiles{});
  });
}

const char* takes(const LayerNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= kMostCols ? nullptr : "needs at most 262144 columns";
}

bool suits(const LayerNormBackwardArgs& a) { return a.cols > kWorthwhileCols; }

const Register<LayerNormBackwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
