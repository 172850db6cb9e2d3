// Layer norm backward from the output, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of weight, bias, dw and db, so rows of any practical
//   length are read once; what the row adds up to travels through distributed shared memory. Bound: DRAM; the longest
//   16-bit rows under f32 weights leave room for one row in the ring only, so loads pause while that row is reduced.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/backward_persistent.cuh"
#include "norm/layer_norm_backward_from_output/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = BackwardTile<numbers...>;

using HalfTiles = std::tuple<Tile<256, 0, 4, 2, 2, 2, 0>, Tile<256, 0, 4, 2, 2, 4, 0>, Tile<256, 0, 4, 2, 2, 8, 0>,
                             Tile<256, 0, 4, 2, 2, 16, 0>, Tile<512, 0, 4, 2, 1, 16, 0>>;
using MixedTiles = std::tuple<Tile<512, 0, 2, 2, 1, 2, 0>, Tile<512, 0, 2, 2, 1, 4, 0>, Tile<512, 0, 2, 2, 1, 8, 0>,
                              Tile<512, 0, 2, 2, 1, 16, 0>, Tile<512, 0, 4, 1, 1, 16, 0>>;
using FloatTiles = std::tuple<Tile<512, 0, 4, 2, 1, 2, 0>, Tile<512, 0, 4, 2, 1, 4, 0>, Tile<512, 0, 4, 2, 1, 8, 0>,
                              Tile<512, 0, 4, 2, 1, 16, 0>>;
constexpr int64_t kMostBytes = 16 * kMostPacksOf<HalfTiles>;
static_assert(kMostBytes == 16 * kMostPacksOf<MixedTiles> && kMostBytes == 16 * kMostPacksOf<FloatTiles>,
              "one limit for every dtype");
constexpr int64_t kWorthwhileCols = 8192;

void launch(const LayerNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using ForHalves = std::conditional_t<sizeof(W) == 2, HalfTiles, MixedTiles>;
    using Tiles = std::conditional_t<sizeof(T) == 2, ForHalves, FloatTiles>;
    launch_smallest_tile<LayerNormBackwardFromOutput<T, W>>(a, stream, Tiles{});
  });
}

const char* takes(const LayerNormBackwardFromOutputArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols * size_of(a.dtype) <= kMostBytes ? nullptr : "needs rows of at most 512 KiB";
}

bool suits(const LayerNormBackwardFromOutputArgs& a) { return a.cols > kWorthwhileCols; }

const Register<LayerNormBackwardFromOutputArgs> registered{"cluster", /*min_sm=*/90, takes,
                                                           launch,    suits,         /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
