// RMS norm backward, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of weight and dw in registers, so rows of any
//   practical length are read once; the row's two sums travel through distributed shared memory. Bound: DRAM; of the
//   longest f32 rows the ring holds one and a half, so loads run low while a row is reduced.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/backward_persistent.cuh"
#include "norm/rms_norm_backward/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = BackwardTile<numbers...>;

using HalfTiles = std::tuple<Tile<512, 0, 2, 3, 1, 2>, Tile<512, 0, 2, 3, 1, 4>, Tile<512, 0, 4, 3, 1, 4>,
                             Tile<512, 0, 4, 3, 1, 8>, Tile<512, 0, 4, 3, 1, 16>>;
using FloatTiles = std::tuple<Tile<512, 0, 4, 3, 1, 2>, Tile<512, 0, 4, 3, 1, 4>, Tile<512, 0, 4, 3, 1, 8>,
                              Tile<512, 0, 4, 3, 1, 16>, Tile<512, 0, 8, 1, 1, 16, 1, 4>>;
constexpr int64_t kMostCols = 8 * kMostPacksOf<HalfTiles>;
static_assert(kMostCols == 4 * kMostPacksOf<FloatTiles>, "one limit for every dtype");
constexpr int64_t kWorthwhileCols = 8192;

void launch(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using Tiles = std::conditional_t<sizeof(T) == 2, HalfTiles, FloatTiles>;
    launch_smallest_tile<RmsNormBackward<T, W>>(a, stream, Tiles{});
  });
}

const char* takes(const RmsNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= kMostCols ? nullptr : "needs at most 262144 columns";
}

bool suits(const RmsNormBackwardArgs& a) { return a.cols > kWorthwhileCols; }

const Register<RmsNormBackwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
