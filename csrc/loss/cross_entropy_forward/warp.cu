// Cross-entropy of short rows, each within a warp.
//   Against `unroll`: four to thirty-two lanes share a row and hold all of it at once, so that a block works on many rows,
//   no barrier stands between their loads and their losses, and nothing is rescaled. Bound: DRAM.
#include <tuple>

#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy_forward/cross_entropy_forward.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

// lanes that share a row | 128-bit packs of it that each of them holds | blocks per multiprocessor that the registers
// must allow
template <int lanes_, int packs_, int min_blocks_>
struct Tile {
  static constexpr int lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr int most_packs = lanes * packs, rows_per_block = kThreads / lanes;
};

// The first that holds the row is taken.
using Tiles = std::tuple<Tile<4, 1, 12>, Tile<8, 1, 12>, Tile<8, 2, 12>, Tile<16, 2, 12>, Tile<32, 2, 12>,
                         Tile<32, 4, 12>, Tile<32, 8, 7>>;
constexpr int kMostPacks = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;
constexpr int kMostBytes = 4096;
static_assert(kMostBytes == kMostPacks * 16, "the refusal names this size");

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(kThreads, Tile::min_blocks)
    cross_entropy_forward_warp_kernel(const CrossEntropyForwardArgs a) {
  constexpr int kPacks = Tile::packs, kLanes = Tile::lanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t row = int64_t{blockIdx.x} * Tile::rows_per_block + threadIdx.x / kLanes;
  const bool exists = row < a.in.rows;
  const T* x = logits_row<T>(a.in, exists ? row : 0);  // [cols]
  const PeeledRow<T> peeled = peel(a.in, x, exists);
  const int packs = peeled.packs;

  // load
  Pack<T> held[kPacks];
  const T* gX = x + peeled.col(lane);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    fill_lowest(held[i]);
    if (i * kLanes + lane < packs) load<Cache::streaming>(held[i], gX + i * kLanes * kPack<T>);
  }
  const int count = packs > lane ? (packs - lane + kLanes - 1) / kLanes : 0;
  const int64_t target = exists ? target_of(a.in, row) : a.in.ignore_index;
  const bool writes = exists && lane == 0;
  const float logit = writes ? target_logit(a.in, x, target) : 0.0f;

  // sum
  RowSums sums = no_sums();
#pragma unroll
  for (int i = 0; i < PeeledRow<T>::kEdges; i += kLanes) {
    if (const int edge = peeled.edge(i + lane); edge >= 0) absorb<Smooth>(sums, to_float(x[edge]));
  }
  absorb<Smooth>(sums, held, count);
  sums = warp_join<Smooth, kLanes>(sums);
  if (writes) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);
}

template <class T, class Smooth, class... Tile>
void launch_smallest(const CrossEntropyForwardArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  const int64_t packs = a.in.cols / kPack<T>;
  const auto grid = [&](int rows) { return static_cast<unsigned>((a.in.rows + rows - 1) / rows); };
  bool done = false;
  ((!done && packs <= Tile::most_packs &&
    (warpsmith::launch<&cross_entropy_forward_warp_kernel<T, Smooth, Tile>>({grid(Tile::rows_per_block), kThreads},
                                                                            stream, a),
     done = true)),
   ...);
}

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() { launch_smallest<T, Smooth>(a, stream, Tiles{}); });
}

const char* takes(const CrossEntropyForwardArgs& a) {
  if (a.in.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.in.cols * size_of(a.in.dtype) <= kMostBytes ? nullptr : "needs rows of at most 4 KiB";
}

const Register<CrossEntropyForwardArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
