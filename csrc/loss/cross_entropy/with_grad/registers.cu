// Cross-entropy with its gradient, the row held in registers.
//   Against `pack`: every value is read once. Short rows share a warp, and up to eight packs a thread a warp has a row to
//   itself: what a row costs besides its values, a loss, a join and a division, is then paid once. A multiprocessor holds
//   at least two rows, so that one reads while another writes. Blocks take their places while the kernel before ends.
//   Bound: DRAM.
// Mapping after quack's "Getting Memory-bound Kernels to Speed-of-Light",
// https://github.com/Dao-AILab/quack/blob/main/media/2025-07-10-membound-sol.md
#include <tuple>

#include "device/start_early.h"
#include "host/launch.h"
#include "host/registry.h"
#include "host/tiles.h"
#include "loss/cross_entropy/with_grad/row.cuh"
#include "row/packed.h"

namespace warpsmith {
namespace {

// threads of a block (at most) | threads that share a row, 0: the whole block, cut to what the row needs |
// 128-bit packs of a row that each of them holds | blocks per multiprocessor that the registers must allow
template <int threads_, int lanes_, int packs_, int min_blocks_>
struct Tile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr int most_packs = (lanes > 0 ? lanes : threads) * packs;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
};

// The first that holds the row is taken.
using Tiles = std::tuple<Tile<128, 4, 1, 10>, Tile<128, 8, 1, 10>, Tile<128, 8, 2, 10>, Tile<128, 16, 2, 10>,
                         Tile<128, 32, 2, 10>, Tile<128, 32, 4, 8>, Tile<128, 32, 8, 6>, Tile<128, 0, 4, 8>,
                         Tile<256, 0, 4, 4>, Tile<512, 0, 4, 2>, Tile<512, 0, 8, 2>>;
constexpr int kMostBytes = 16 * std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    cross_entropy_with_grad_registers_kernel(const CrossEntropyWithGradArgs a, bool keep) {
  constexpr bool kShared = Tile::lanes > 0;
  constexpr int kPacks = Tile::packs, kLeastLanes = kShared ? Tile::lanes : kWarp;
  constexpr int kEdges = (PeeledRow<T>::kEdges + kLeastLanes - 1) / kLeastLanes;  // that a thread may have to see to
  __shared__ RowSums partial[kWarp];
  start_early();
  const int lanes = kShared ? Tile::lanes : blockDim.x;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int group = kShared ? threadIdx.x / lanes : 0;
  const int64_t row = int64_t{blockIdx.x} * Tile::rows_per_block + group;
  const bool exists = row < a.in.rows;
  const T* x = logits_row<T>(a.in, exists ? row : 0);  // [cols]
  const PeeledRow<T> peeled = peel(a.in, x, exists);

  // load
  const uint64_t policy = load_policy(keep);
  Pack<T> held[kPacks];
  int count = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * lanes + lane;
    fill_lowest(held[i]);
    if (pack < peeled.packs) {
      load_logits(held[i], x + peeled.col(pack), policy);
      count = i + 1;
    }
  }
  float at_edge[kEdges];
#pragma unroll
  for (int i = 0; i < kEdges; ++i) {
    const int edge = peeled.edge(i * lanes + lane);
    at_edge[i] = edge >= 0 ? to_float(x[edge]) : kLowest;
  }
  const int64_t target = exists ? target_of(a.in, row) : a.in.ignore_index;
  const float grad_loss = exists ? grad_loss_of(a, row) : 0.0f;
  const bool writes_loss = exists && lane == 0;
  const float logit = writes_loss ? target_logit(a.in, x, target) : 0.0f;  // before it may be overwritten

  // sum
  RowSums sums = no_sums();
#pragma unroll
  for (int i = 0; i < kEdges; ++i) {
    if (peeled.edge(i * lanes + lane) >= 0) absorb<Smooth>(sums, at_edge[i]);
  }
  absorb<Smooth>(sums, held, count);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) keep_packed(held[i]);
  if constexpr (kShared) {
    sums = warp_join<Smooth, Tile::lanes>(sums);
    __syncwarp();
  } else {
    sums = block_join<Smooth>(sums, partial);
  }

  // gradient
  T* dx = dlogits_row<T>(a, exists ? row : 0);  // [cols], aligned like x
  const RowGradient gradient = gradient_of(a.in, target, sums, grad_loss);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * lanes + lane, col = peeled.col(pack);
    if (pack < peeled.packs) store<Cache::streaming>(dx + col, gradient_at(held[i], gradient, col));
  }
#pragma unroll
  for (int i = 0; i < kEdges; ++i) {
    const int edge = peeled.edge(i * lanes + lane);
    if (edge >= 0) dx[edge] = from_float<T>(gradient_at(at_edge[i], gradient, edge));
  }
  if (writes_loss) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);  // last: others need not wait for `logit`
}

template <class T, class Smooth, class Tile>
void launch_tile(const CrossEntropyWithGradArgs& a, cudaStream_t stream) {
  const unsigned threads =
      Tile::lanes > 0 ? Tile::threads : row_threads(a.in.cols / kPack<T>, Tile::packs, Tile::threads);
  const unsigned grid = static_cast<unsigned>((a.in.rows + Tile::rows_per_block - 1) / Tile::rows_per_block);
  const LaunchConfig config{.grid = dim3(grid), .block = dim3(threads), .early = true};
  warpsmith::launch<&cross_entropy_with_grad_registers_kernel<T, Smooth, Tile>>(config, stream, a, keeps_logits(a));
}

void launch(const CrossEntropyWithGradArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() {
    with_first_tile(Tiles{}, a.in.cols / kPack<T>, [&]<class Tile>() { launch_tile<T, Smooth, Tile>(a, stream); });
  });
}

const char* takes(const CrossEntropyWithGradArgs& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.in.rows), needs_row_bytes<kMostBytes>(a.in.cols, a.in.dtype)});
}

// Floats of which a lane would hold more than four packs leave room for too few warps; `pack` finds them in L1 again.
bool suits(const CrossEntropyWithGradArgs& a) {
  const int64_t packs = a.in.cols / (16 / size_of(a.in.dtype));
  return a.in.dtype != Dtype::f32 || packs <= 4 * kWarp || packs > 8 * kWarp;
}

const Register<CrossEntropyWithGradArgs> registered{"registers", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
