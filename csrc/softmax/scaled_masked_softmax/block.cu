// Scaled masked softmax, the row in the registers of a block.
//   Against `warp`: rows that a warp cannot hold, or of which it leaves a multiprocessor too few. Each warp takes its own
//   maximum and sum, and one exchange through shared memory, behind one barrier, joins them all. Bound: DRAM, until a row
//   fills a multiprocessor.
#include "softmax/scaled_masked_softmax/row.cuh"

namespace warpsmith {
namespace {

// Fewest warps to a row, many rows on a multiprocessor. Without a bias, packs of f32 leave registers for more of them.
// Of the lengths that matter most, blocks are whole.
using LongTile = LogitTile<1024, 0, 4, 1>;
using HalfTiles = std::tuple<LogitTile<64, 0, 4, 16, false, false>, LogitTile<128, 0, 4, 8, false, false>,
                             LogitTile<256, 0, 4, 3>, LogitTile<512, 0, 4, 1>, LongTile>;
using FloatTiles = std::tuple<LogitTile<128, 0, 8, 6>, LogitTile<512, 0, 4, 1>, LongTile>;
using BiasedFloatTiles = std::tuple<LogitTile<64, 0, 4, 16, true, false>, LogitTile<128, 0, 4, 8, true, false>,
                                    LogitTile<256, 0, 4, 3>, LogitTile<512, 0, 4, 1>, LongTile>;
template <class T, class Biased>
using Tiles =
    std::conditional_t<sizeof(T) == 2, HalfTiles, std::conditional_t<Biased::value, BiasedFloatTiles, FloatTiles>>;
static_assert(LongTile::most_packs * 16 == kBlockBytes);

template <class T, class Biased, class Tile>
__global__ void __launch_bounds__(Tile::threads, min_blocks<Tile, Biased>())
    scaled_masked_softmax_block_kernel(const ScaledMaskedSoftmaxRows<T> v) {
  __shared__ RowTotals partial[kWarp];
  softmax_row<Tile, Biased>(v, [&](const RowTotals& own) { return join_warps(own, partial); });
}

void launch(const ScaledMaskedSoftmaxArgs& a, cudaStream_t stream) {
  visit_logits(a.logits, [&]<class T, class Biased>() {
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, Tiles<T, Biased>{},
                    [&]<class Tile>(const LaunchConfig& config) {
                      warpsmith::launch<&scaled_masked_softmax_block_kernel<T, Biased, Tile>>(
                          config, stream, ScaledMaskedSoftmaxRows<T>(a));
                    });
  });
}

const char* takes(const ScaledMaskedSoftmaxArgs& a) {
  return unmet({needs_packs(a.logits), needs_grid_rows(a.logits.rows),
                needs_row_bytes<kBlockBytes>(a.logits.cols, a.logits.dtype)});
}

bool suits(const ScaledMaskedSoftmaxArgs& a) { return a.logits.cols > most_warp_cols(a.logits, a.dropout.active); }

const Register<ScaledMaskedSoftmaxArgs> registered{"block", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
