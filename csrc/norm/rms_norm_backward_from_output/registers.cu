// RMS norm backward from the output, persistent blocks with dw in registers.
//   Against `naive`: grad and y are read once, as `registers` of rms_norm_backward reads grad and x; with rstd given, one
//   sum over the row remains. Bound: DRAM.
#include "norm/backward_persistent.cuh"
#include "norm/rms_norm_backward_from_output/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = BackwardTile<numbers...>;

// 16-bit values take twice the registers of dw per pack, so they get half the packs.
using HalfTiles = std::tuple<Tile<256, 8, 1, 3, 4>, Tile<256, 32, 1, 3, 4>, Tile<256, 32, 2, 3, 3>,
                             Tile<256, 32, 4, 2, 2>, Tile<512, 0, 2, 3, 2>>;
using FloatTiles = std::tuple<Tile<256, 8, 1, 3, 4>, Tile<256, 32, 1, 3, 4>, Tile<256, 32, 2, 3, 4>,
                              Tile<256, 32, 4, 2, 3>, Tile<128, 32, 8, 2, 3>, Tile<512, 0, 4, 3, 1>>;
constexpr int64_t kMostCols = 8 * kMostPacksOf<HalfTiles>;
static_assert(kMostCols == 4 * kMostPacksOf<FloatTiles>, "one limit for every dtype");

void launch(const RmsNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    using Tiles = std::conditional_t<sizeof(T) == 2, HalfTiles, FloatTiles>;
    launch_smallest_tile<RmsNormBackwardFromOutput<T, W>>(a, stream, Tiles{});
  });
}

const char* takes(const RmsNormBackwardFromOutputArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= kMostCols ? nullptr : "needs at most 8192 columns";
}

const Register<RmsNormBackwardFromOutputArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
