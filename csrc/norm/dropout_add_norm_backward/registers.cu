// Residual norms with dropout backward, persistent blocks with dw and db in registers.
//   Against `naive`: everything is read once and every answer of the generator is used in full, as `registers` of
//   add_norm_backward has it. The generator wants registers too, so fewer blocks share a multiprocessor. Bound: DRAM and,
//   at 16 bits, the generator.
#include "norm/add_norm_backward/persistent.cuh"
#include "norm/dropout_add_norm_backward/row.cuh"

namespace warpsmith {
namespace {

template <int... numbers>
using Tile = AddNormBackwardTile<numbers...>;

using HalfTiles = std::tuple<Tile<256, 32, 1, 3, 2>, Tile<512, 0, 2, 2, 1>>;
using FloatTiles = std::tuple<Tile<256, 32, 1, 3, 2>, Tile<512, 0, 4, 1, 1>>;
template <class Types>
using TilesFor = std::conditional_t<sizeof(typename Types::H) == 2, HalfTiles, FloatTiles>;

void launch(const DropoutAddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(a, [&]<class Types>() {
    static_assert(Types::kWidth * kMostPacksOf<TilesFor<Types>> == 8192, "one limit for every dtype");
    launch_smallest_tile(a, DropoutAddNormBackwardRows<Types>(a), stream, TilesFor<Types>{});
  });
}

const char* takes(const DropoutAddNormBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.cols <= 8192 ? nullptr : "needs at most 8192 columns";
}

const Register<DropoutAddNormBackwardArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
