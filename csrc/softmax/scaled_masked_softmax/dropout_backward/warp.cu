// Backward of bias, scale, mask, softmax and dropout, a warp per row with the row in its registers.
//   Against `pack`: grad and x are read once, exponentials and dropped elements are found once, and no barrier is left;
//   short rows share a warp. A causal row neither reads nor computes what lies beyond its diagonal. Bound: DRAM with
//   16-bit data without dropout, the generator's integer multiplications with it.
#include "softmax/scaled_masked_softmax/dropout_backward/register_rows.cuh"

namespace warpsmith {
namespace {

template <int four, int eight>  // blocks of four and of eight packs to a thread, what their registers allow
using Tiles = std::tuple<LogitTile<128, 8, 1, 12>, LogitTile<128, 16, 1, 12>, LogitTile<128, 32, 1, 12>,
                         LogitTile<128, 16, 4, four>, LogitTile<128, 32, 4, four>, LogitTile<128, 32, 8, eight>>;
constexpr int64_t kMostBytes = 4096;
static_assert(std::tuple_element_t<5, Tiles<5, 3>>::most_packs * 16 == kMostBytes);

// Before sm_90, four packs take a few registers more.
template <class Tile>
constexpr int resident_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return Tile::packs == 4 ? Tile::min_blocks - 1 : Tile::min_blocks;
#else
  return Tile::min_blocks;
#endif
}

template <class T, class B, class Tile>
__global__ void __launch_bounds__(Tile::threads, resident_blocks<Tile>())
    bias_scale_mask_softmax_dropout_backward_warp_kernel(const RegisterRows<T> v) {
  dropout_backward_row<Tile, B>(
      v, [](const GradientSums& own, bool peaked) { return warp_sums<Tile::lanes>(own, peaked); });
}

const char* takes(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  return unmet(
      {needs_packs(a), needs_grid_rows(a.logits.rows), needs_row_bytes<kMostBytes>(a.logits.cols, a.logits.dtype)});
}

void launch(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a, cudaStream_t stream) {
  visit_bias(a.logits, [&]<class T, class B>() {
    constexpr bool kWideBias = sizeof(T) == 2 && std::is_same_v<B, float>;
    using TypeTiles = std::conditional_t<kWideBias, Tiles<4, 2>, Tiles<sizeof(T) == 2 ? 6 : 7, 3>>;
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, TypeTiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&bias_scale_mask_softmax_dropout_backward_warp_kernel<T, B, Tile>>(config, stream,
                                                                                           RegisterRows<T>(a));
    });
  });
}

const Register<BiasScaleMaskSoftmaxDropoutBackwardArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
