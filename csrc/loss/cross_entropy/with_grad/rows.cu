// Cross-entropy with its gradient, many short rows, several by the same lanes.
//   Against `registers`: a group of lanes takes row after row, the next on its way while one is summed and written, so
//   that reads and writes of fewer warps overlap. Each lane sees to the target, the logit and the loss of one row, and
//   hands the others what they need of it. Bound: DRAM.
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy/with_grad/row.cuh"
#include "loss/register_rows.cuh"
#include "row/packed.h"

namespace warpsmith {
namespace {

using Tiles = std::tuple<RegisterTile<4, 1, 8>, RegisterTile<8, 1, 8>, RegisterTile<8, 2, 6>, RegisterTile<16, 2, 6>,
                         RegisterTile<32, 2, 6>, RegisterTile<32, 4, 6>, RegisterTile<32, 8, 3>>;

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    cross_entropy_with_grad_rows_kernel(const CrossEntropyWithGradArgs a, bool keep, int of_group) {
  start_early();
  constexpr int kLanes = Tile::lanes;
  const GroupRows<T, Tile> group(a.in, of_group);
  const uint64_t policy = load_policy(keep);

  // the row of this lane
  const bool writes_loss = group.has_own();
  const int64_t row = group.first + group.lane;
  const int64_t target = writes_loss ? target_of(a.in, row) : a.in.ignore_index;
  const float grad_loss = writes_loss ? grad_loss_of(a, row) : 0.0f;
  const float logit = writes_loss ? target_logit(a.in, logits_row<T>(a.in, row), target) : 0.0f;
  __syncwarp();  // before another lane may overwrite the logit
  RowSums own = no_sums();

  group.template each<1>([&](Pack<T>& to, const T* from) { load_logits(to, from, policy); },
                         [&](int i, const T* x, RegisterRow<T, Tile>& held) {
                           const int lane = group.lane;
                           typename RegisterRow<T, Tile>::Edges edges;
                           const RowSums sums = held.template sums<Smooth>(x, lane, edges);
                           if (i == lane) own = sums;
#pragma unroll
                           for (auto& pack : held.packs) keep_packed(pack);

                           T* dx = dlogits_row<T>(a, group.first + i);  // [cols], aligned like x
                           const RowGradient gradient = gradient_of(a.in, __shfl_sync(kAllLanes, target, i, kLanes),
                                                                    sums, __shfl_sync(kAllLanes, grad_loss, i, kLanes));
#pragma unroll
                           for (int j = 0; j < Tile::packs; ++j) {
                             const int pack = j * kLanes + lane, col = held.peeled.col(pack);
                             if (pack < held.peeled.packs) {
                               store<Cache::streaming>(dx + col, gradient_at(held.packs[j], gradient, col));
                             }
                           }
                           if (held.has_edges()) {
#pragma unroll
                             for (int j = 0; j < held.kEdges; ++j) {
                               const int col = held.edge(j, lane);
                               if (col >= 0) dx[col] = from_float<T>(gradient_at(edges[j], gradient, col));
                             }
                           }
                         });
  if (writes_loss) write_loss(a.in, row, target, logit, own, a.loss, a.lse);
}

void launch(const CrossEntropyWithGradArgs& a, cudaStream_t stream) {
  visit_held(a.in, Tiles{}, [&]<class T, class Smooth, class Tile>() {
    const int of_group = rows_of_group<Tile>(a.in.rows);
    warpsmith::launch<&cross_entropy_with_grad_rows_kernel<T, Smooth, Tile>>(grid_of_groups<Tile>(a.in.rows, of_group),
                                                                             stream, a, keeps_logits(a), of_group);
  });
}

const char* takes(const CrossEntropyWithGradArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return needs_register_row(a.in);
}

// Fewer logits are read sooner by more lanes at once.
bool suits(const CrossEntropyWithGradArgs& a) { return suits_rows(a.in) && a.in.rows * a.in.cols >= 32 << 20; }

const Register<CrossEntropyWithGradArgs> registered{"rows", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
