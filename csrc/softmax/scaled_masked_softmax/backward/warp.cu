// Scaled masked softmax backward, a warp per row with grad and y in its registers.
//   Against `pack`: both are read once and no barrier is left; short rows share a warp. A causal row neither reads nor
//   computes what lies beyond its diagonal. Bound: DRAM.
#include "softmax/scaled_masked_softmax/backward/row.cuh"

namespace warpsmith {
namespace {

using Tiles = std::tuple<LogitTile<128, 8, 1, 12>, LogitTile<128, 16, 1, 12>, LogitTile<128, 32, 1, 12>,
                         LogitTile<128, 32, 2, 10>, LogitTile<128, 32, 4, 8>, LogitTile<128, 32, 8, 5>>;
constexpr int64_t kMostBytes = 4096;
static_assert(std::tuple_element_t<5, Tiles>::most_packs * 16 == kMostBytes);

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    scaled_masked_softmax_backward_warp_kernel(const ScaledMaskedSoftmaxBackwardRows<T> v) {
  softmax_backward_row<Tile>(v, [](float sum) { return warp_reduce<Tile::lanes>(sum); });
}

const char* takes(const ScaledMaskedSoftmaxBackwardArgs& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<kMostBytes>(a.cols, a.dtype)});
}

void launch(const ScaledMaskedSoftmaxBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    launch_smallest(a.rows, a.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&scaled_masked_softmax_backward_warp_kernel<T, Tile>>(config, stream,
                                                                              ScaledMaskedSoftmaxBackwardRows<T>(a));
    });
  });
}

const Register<ScaledMaskedSoftmaxBackwardArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
