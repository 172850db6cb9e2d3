// Sum of everything in a single launch.
//   Against `pack`: as many blocks as the GPU holds walk over the tiles, and the last one to finish adds up what they
//   all leave, in the order of the blocks: the same bits every time, whoever is last. Nothing is read through L1. Short
//   inputs are all on their way at once, a tile to a block, and a warp adds up the sums; up to middling lengths the
//   blocks take their places while the kernel before ends. Bound: DRAM; on short inputs the launch, and the way of the
//   sums through L2 at the end.
#include "device/start_early.h"
#include "reduce/one_pass.cuh"
#include "reduce/reduce_sum/dtypes.cuh"
#include "reduce/reduce_sum/walk_sum.cuh"

namespace warpsmith {
namespace {

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, resident_blocks<T, Tile>())
    reduce_sum_one_pass_kernel(const Span<T, kPack<T>> x, const Walk walk, const Joint<Total<T>> joint, Result<T>* y) {
  using Running = std::conditional_t<Tile::single, Wide<T>, Total<T>>;  // of one tile, a warp's values are still few
  start_early();
  const auto sum = sum_of_walk<Tile, Running>(x, walk);

  // join
  Total<T> total;
  if (join_blocks<Tile>(total, sum, joint)) *y = rounded<Result<T>>(total);
}

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  visit_elements(a.dtype, [&]<class T>() {
    const Span<T, kPack<T>> x(a.x, a.n);
    visit_one_pass<1>(x.accesses, a.sm_count, [&]<class Tile>(const Walk& walk, bool early) {
      const LaunchConfig config{.grid = static_cast<unsigned>(walk.blocks), .block = Tile::threads, .early = early};
      warpsmith::launch<&reduce_sum_one_pass_kernel<T, Tile>>(config, stream, x, walk,
                                                              make_joint<Total<T>>(a.workspace, walk.blocks, stream),
                                                              static_cast<Result<T>*>(a.y));
    });
  });
}

const Register<ReduceSumArgs> registered{"one_pass", /*min_sm=*/80, needs_wide_accumulator, launch};

}  // namespace
}  // namespace warpsmith
