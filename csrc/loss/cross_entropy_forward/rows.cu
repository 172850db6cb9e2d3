// Cross-entropy of many short rows, several by the same lanes.
//   Against `unroll`: a row is held by a few lanes, which take row after row, the next on its way while one is summed.
//   Each lane sees to the target, the logit and the loss of one row, so that these are paid for once for all rows of those
//   lanes. `warp` does without that, and has more warps at work. Bound: DRAM.
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
  static constexpr int most_packs = lanes * packs, groups = kThreads / lanes;
};

// The first that holds the row is taken.
using Tiles = std::tuple<Tile<8, 1, 9>, Tile<8, 2, 8>, Tile<16, 2, 8>, Tile<32, 2, 8>, Tile<32, 4, 6>, Tile<32, 8, 3>>;
constexpr int kMostPacks = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;
constexpr int kMostBytes = 4096;
static_assert(kMostBytes == kMostPacks * 16, "the refusal names this size");

// Rows of a group of lanes, one for a lane; fewer where these would not fill the machine so many times.
constexpr int kMostRowsOfGroup = 8, kWaves = 6;

template <class T, class Tile>
struct HeldRow {
  PeeledRow<T> peeled;
  Pack<T> packs[Tile::packs];
  int count;

  __device__ __forceinline__ HeldRow(const T* x, const PeeledRow<T>& peeled, int lane) : peeled(peeled) {
    const T* gX = x + peeled.col(lane);
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) {
      fill_lowest(packs[i]);
      if (i * Tile::lanes + lane < peeled.packs) load<Cache::streaming>(packs[i], gX + i * Tile::lanes * kPack<T>);
    }
    count = peeled.packs > lane ? (peeled.packs - lane + Tile::lanes - 1) / Tile::lanes : 0;
  }
};

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(kThreads, Tile::min_blocks)
    cross_entropy_forward_rows_kernel(const CrossEntropyForwardArgs a, int rows_of_group) {
  constexpr int kLanes = Tile::lanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t first = (int64_t{blockIdx.x} * Tile::groups + threadIdx.x / kLanes) * rows_of_group;
  const int rows = static_cast<int>(min(int64_t{rows_of_group}, a.in.rows - first));  // none in groups beyond the last
  const auto held = [&](int i) {
    const T* x = logits_row<T>(a.in, first + i);  // [cols]
    return HeldRow<T, Tile>(x, peel(a.in, x, i < rows), lane);
  };

  // the row of this lane
  const bool writes = lane < rows;
  const int64_t row = first + lane;
  const int64_t target = writes ? target_of(a.in, row) : a.in.ignore_index;
  const float logit = writes ? target_logit(a.in, logits_row<T>(a.in, row), target) : 0.0f;
  RowSums own = no_sums();

  const auto sum = [&](int i, const HeldRow<T, Tile>& now) {
    RowSums sums = no_sums();
    if (now.peeled.head + now.peeled.tail > 0) {
      const T* x = logits_row<T>(a.in, first + i);
#pragma unroll
      for (int k = 0; k < PeeledRow<T>::kEdges; k += kLanes) {
        if (const int edge = now.peeled.edge(k + lane); edge >= 0) absorb<Smooth>(sums, to_float(x[edge]));
      }
    }
    absorb<Smooth>(sums, now.packs, now.count);
    sums = warp_join<Smooth, kLanes>(sums);
    if (i == lane) own = sums;
  };
  HeldRow<T, Tile> now = held(0);
#pragma unroll 2
  for (int i = 0; i < rows_of_group; ++i) {
    const HeldRow<T, Tile> next = held(i + 1);
    sum(i, now);
    now = next;
  }
  if (writes) write_loss(a.in, row, target, logit, own, a.loss, a.lse);
}

template <class T, class Smooth, class Tile>
void launch_tile(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  const int64_t wave = int64_t{device_info(current_device()).sm_count} * Tile::min_blocks * Tile::groups;
  int rows_of_group = kMostRowsOfGroup;
  while (rows_of_group > 1 && a.in.rows < kWaves * wave * rows_of_group) rows_of_group /= 2;
  const int64_t of_block = int64_t{Tile::groups} * rows_of_group;
  const unsigned grid = static_cast<unsigned>((a.in.rows + of_block - 1) / of_block);
  warpsmith::launch<&cross_entropy_forward_rows_kernel<T, Smooth, Tile>>({grid, kThreads}, stream, a, rows_of_group);
}

template <class T, class Smooth, class... Tile>
void launch_smallest(const CrossEntropyForwardArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && a.in.cols / kPack<T> <= Tile::most_packs && (launch_tile<T, Smooth, Tile>(a, stream), done = true)), ...);
}

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() { launch_smallest<T, Smooth>(a, stream, Tiles{}); });
}

const char* takes(const CrossEntropyForwardArgs& a) {
  if (a.in.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.in.cols * size_of(a.in.dtype) <= kMostBytes ? nullptr : "needs rows of at most 4 KiB";
}

const Register<CrossEntropyForwardArgs> registered{"rows", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
