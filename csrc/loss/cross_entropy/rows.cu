// Cross-entropy of many short rows, several by the same lanes.
//   Against `warp`: a group of lanes takes row after row, the next on its way while one is summed, so that DRAM is kept
//   busy by fewer warps with more registers. Each lane sees to the target, the logit and the loss of one row: what a row
//   costs besides its values is paid once for all rows of those lanes. Bound: DRAM.
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy/cross_entropy_forward.h"
#include "loss/register_rows.cuh"

namespace warpsmith {
namespace {

using Tiles = std::tuple<RegisterTile<4, 1, 10>, RegisterTile<8, 1, 10>, RegisterTile<8, 2, 8>, RegisterTile<16, 2, 8>,
                         RegisterTile<32, 2, 8>, RegisterTile<32, 4, 8>, RegisterTile<32, 8, 4>>;

// The plain sum takes registers, too.
template <class Smooth, class Tile>
constexpr int kMinBlocks = Tile::min_blocks - (Smooth::value && Tile::packs == 4 ? 1 : 0);

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(Tile::threads, (kMinBlocks<Smooth, Tile>))
    cross_entropy_forward_rows_kernel(const CrossEntropyForwardArgs a, int of_group) {
  start_early();
  const GroupRows<T, Tile> group(a.in, of_group);

  // the row of this lane
  const bool writes = group.has_own();
  const int64_t row = group.first + group.lane;
  const int64_t target = writes ? target_of(a.in, row) : a.in.ignore_index;
  const float logit = writes ? target_logit(a.in, logits_row<T>(a.in, row), target) : 0.0f;
  RowSums own = no_sums();

  group.template each<2>(load_streaming<T>, [&](int i, const T* x, const RegisterRow<T, Tile>& held) {
    typename RegisterRow<T, Tile>::Edges edges;
    const RowSums sums = held.template sums<Smooth>(x, group.lane, edges);
    if (i == group.lane) own = sums;
  });
  if (writes) write_loss(a.in, row, target, logit, own, a.loss, a.lse);
}

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  visit_held(a.in, Tiles{}, [&]<class T, class Smooth, class Tile>() {
    const int of_group = rows_of_group<Tile, kMinBlocks<Smooth, Tile>>(a.in.rows);
    warpsmith::launch<&cross_entropy_forward_rows_kernel<T, Smooth, Tile>>(grid_of_groups<Tile>(a.in.rows, of_group),
                                                                           stream, a, of_group);
  });
}

const char* takes(const CrossEntropyForwardArgs& a) { return needs_register_row(a.in); }

// Fewer logits are read sooner by more lanes at once.
bool suits(const CrossEntropyForwardArgs& a) {
  return suits_rows(a.in) && a.in.rows * a.in.cols * size_of(a.in.dtype) >= 16 << 20;
}

const Register<CrossEntropyForwardArgs> registered{"rows", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
