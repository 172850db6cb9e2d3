// Cross-entropy, four packs of a row in flight per thread.
//   Against `pack`: a thread makes four loads before it waits for the first, and the maximum moves once for all of them,
//   so that the rows of one multiprocessor keep DRAM busy while others of them compute. A row whose target is to be
//   ignored is left after the first loads. Bound: DRAM.
#include <tuple>

#include "host/launch.h"
#include "host/registry.h"
#include "host/tiles.h"
#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy/cross_entropy_forward.h"

namespace warpsmith {
namespace {

constexpr int kPacks = 4;

// threads of a block | blocks per multiprocessor that the registers must allow: 96 KiB in flight
template <int threads_, int min_blocks_>
struct Tile {
  static constexpr int threads = threads_, min_blocks = min_blocks_;
};

// The first whose threads have a row's packs in flight at once is taken, else the last.
using Tiles = std::tuple<Tile<64, 24>, Tile<128, 12>, Tile<256, 6>, Tile<512, 3>>;

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    cross_entropy_forward_unroll_kernel(const CrossEntropyForwardArgs a) {
  constexpr int kThreads = Tile::threads, kStep = kThreads * kPacks;
  __shared__ RowSums partial[kWarp];
  const int tid = threadIdx.x;
  for (int64_t row = blockIdx.x; row < a.in.rows; row += gridDim.x) {
    const T* x = logits_row<T>(a.in, row);  // [cols]
    const PeeledRow<T> peeled = peel(a.in, x);
    const int64_t target = target_of(a.in, row);
    const T* gX = x + peeled.col(tid);  // this thread's packs, kThreads apart
    int left = peeled.packs;

    RowSums sums = no_sums();
    if (const int edge = peeled.edge(tid); edge >= 0) absorb<Smooth>(sums, to_float(x[edge]));

    // whole steps, in which every thread has all its packs
    Pack<T> packs[kPacks];
#pragma unroll 1
    for (; left >= kStep; left -= kStep, gX += kStep * kPack<T>) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) load<Cache::streaming>(packs[i], gX + i * kThreads * kPack<T>);
      if (target == a.in.ignore_index) left = 0;
      absorb<Smooth>(sums, packs, kPacks);
    }

    // what is left
    if (tid < left) {
      const int count = (left - tid + kThreads - 1) / kThreads;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        fill_lowest(packs[i]);
        if (i < count) load<Cache::streaming>(packs[i], gX + i * kThreads * kPack<T>);
      }
      absorb<Smooth>(sums, packs, count);
    }

    const float logit = tid == 0 ? target_logit(a.in, x, target) : 0.0f;  // on its way during the join
    sums = block_join<Smooth>(sums, partial);
    if (tid == 0) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  constexpr int kMostThreads = 512;
  visit_smoothing(a.in, [&]<class T, class Smooth>() {
    const int64_t packs = a.in.cols / kPack<T>;
    const auto holds = [&]<class Tile>() { return packs <= Tile::threads * kPacks || Tile::threads == kMostThreads; };
    with_first_tile(Tiles{}, holds, [&]<class Tile>() {
      const LaunchConfig config{.grid = row_grid(a.in.rows), .block = Tile::threads};
      warpsmith::launch<&cross_entropy_forward_unroll_kernel<T, Smooth, Tile>>(config, stream, a);
    });
  });
}

const char* takes(const CrossEntropyForwardArgs& a) { return needs_peelable(a.in); }

const Register<CrossEntropyForwardArgs> registered{"unroll", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
