// Cross-entropy of short rows, each within a warp.
//   Against `unroll`: four to thirty-two lanes share a row and hold all of it at once, so that a block works on many rows,
//   no barrier stands between their loads and their losses, and nothing is rescaled. Blocks take
//   their places while the kernel before ends. Bound: DRAM.
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy/cross_entropy_forward.h"
#include "loss/register_rows.cuh"

namespace warpsmith {
namespace {

using Tiles =
    std::tuple<RegisterTile<4, 1, 12>, RegisterTile<8, 1, 12>, RegisterTile<8, 2, 12>, RegisterTile<16, 2, 12>,
               RegisterTile<32, 2, 12>, RegisterTile<32, 4, 12>, RegisterTile<32, 8, 7>>;

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    cross_entropy_forward_warp_kernel(const CrossEntropyForwardArgs a) {
  start_early();
  const int lane = threadIdx.x % Tile::lanes;
  const int64_t row = int64_t{blockIdx.x} * Tile::groups + threadIdx.x / Tile::lanes;
  const bool exists = row < a.in.rows;
  const T* x = logits_row<T>(a.in, exists ? row : 0);  // [cols]
  const RegisterRow<T, Tile> held(x, peel(a.in, x, exists), lane, load_streaming<T>);
  const int64_t target = exists ? target_of(a.in, row) : a.in.ignore_index;
  const bool writes = exists && lane == 0;
  const float logit = writes ? target_logit(a.in, x, target) : 0.0f;

  typename RegisterRow<T, Tile>::Edges edges;
  const RowSums sums = held.template sums<Smooth>(x, lane, edges);
  if (writes) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);
}

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  visit_held(a.in, Tiles{}, [&]<class T, class Smooth, class Tile>() {
    warpsmith::launch<&cross_entropy_forward_warp_kernel<T, Smooth, Tile>>(grid_of_groups<Tile>(a.in.rows, 1), stream,
                                                                           a);
  });
}

const char* takes(const CrossEntropyForwardArgs& a) { return needs_register_row(a.in); }

const Register<CrossEntropyForwardArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
