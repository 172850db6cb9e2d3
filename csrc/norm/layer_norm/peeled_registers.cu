// Layer norm, rows that begin anywhere held in the registers of a block or of a cluster of small blocks.
//   Against `unroll`: x is read once, and in packs as they lie in memory, whatever column they begin at; the
//   weights of a pack are put together from those that it straddles. Which values meet in a sum follows from their columns
//   alone, so that a row has the same bits wherever it lies. Bound: DRAM.
#include "norm/forward/peeled.cuh"

namespace warpsmith {
namespace {

const Register<LayerNormArgs> registered{"peeled_registers",          /*min_sm=*/90,
                                         needs_peeled<LayerNormArgs>, launch_norm_peeled<LayerNormArgs>,
                                         suits_peeled<LayerNormArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
