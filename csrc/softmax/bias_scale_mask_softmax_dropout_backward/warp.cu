// Backward of bias, scale, mask, softmax and dropout, a warp per row with the row in its registers.
//   Against `pack`: grad and x are read once, exponentials and dropped elements are found once, and no barrier is left;
//   short rows share a warp. A causal row neither reads nor computes what lies beyond its diagonal. Bound: DRAM with
//   16-bit data without dropout, the generator's integer multiplications with it.
#include "softmax/bias_scale_mask_softmax_dropout_backward/row.cuh"

namespace warpsmith {
namespace {

template <int blocks>  // of four packs to a thread, what their registers allow
using Tiles = std::tuple<LogitTile<128, 8, 1, 12>, LogitTile<128, 16, 1, 12>, LogitTile<128, 32, 1, 12>,
                         LogitTile<128, 16, 4, blocks>, LogitTile<128, 32, 4, blocks>, LogitTile<128, 32, 8, 3>>;
constexpr int64_t kMostBytes = 4096;
static_assert(std::tuple_element_t<5, Tiles<5>>::most_packs * 16 == kMostBytes);

template <class T, class Biased, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    bias_scale_mask_softmax_dropout_backward_warp_kernel(const BiasScaleMaskSoftmaxDropoutBackwardRows<T> v) {
  dropout_backward_row<Tile, Biased>(v, [](const GradientSums& own) { return warp_sums<Tile::lanes>(own); });
}

const char* takes(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (const char* reason = needs_grid(a.logits.rows)) return reason;
  return a.logits.cols * size_of(a.logits.dtype) <= kMostBytes ? nullptr : "needs rows of at most 4 KiB";
}

void launch(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a, cudaStream_t stream) {
  visit_logits(a.logits, [&]<class T, class Biased>() {
    using TypeTiles = Tiles<sizeof(T) == 2 ? 5 : 7>;
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, TypeTiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&bias_scale_mask_softmax_dropout_backward_warp_kernel<T, Biased, Tile>>(
          config, stream, BiasScaleMaskSoftmaxDropoutBackwardRows<T>(a));
    });
  });
}

const Register<BiasScaleMaskSoftmaxDropoutBackwardArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
