// Dot product in a single launch.
//   Against `pack`: as many blocks as the GPU holds walk over the tiles, and the last one to finish adds up what they
//   all leave, in the order of the blocks: the same bits every time, whoever is last. Nothing is read through L1. Short
//   inputs are all on their way at once, a tile to a block, and a warp adds up the sums; up to middling lengths the
//   blocks take their places while the kernel before ends. Bound: DRAM; on short inputs the launch, and the way of the
//   sums through L2 at the end.
#include "device/start_early.h"
#include "reduce/dot/walk_dot.cuh"
#include "reduce/one_pass.cuh"

namespace warpsmith {
namespace {

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    dot_one_pass_kernel(const Span<T, kPack<T>> x, const Span<T, kPack<T>> y, const Walk walk,
                        const Joint<double> joint, T* out) {
  using Running = std::conditional_t<Tile::single, float, double>;  // of one tile, a warp's values are still few
  start_early();
  const auto sum = dot_of_walk<Tile, Running>(x, y, walk);

  // join
  double total;
  if (join_blocks<Tile>(total, sum, joint)) *out = rounded<T>(total);
}

const char* takes(const DotArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return needs_f32_accumulator(a);
}

void launch(const DotArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const Span<T, kPack<T>> x(a.x, a.n), y(a.y, a.n);
    visit_one_pass<2>(x.accesses, a.sm_count, [&]<class Tile>(const Walk& walk, bool early) {
      const LaunchConfig config{.grid = static_cast<unsigned>(walk.blocks), .block = Tile::threads, .early = early};
      warpsmith::launch<&dot_one_pass_kernel<T, Tile>>(
          config, stream, x, y, walk, make_joint<double>(a.workspace, walk.blocks, stream), static_cast<T*>(a.out));
    });
  });
}

const Register<DotArgs> registered{"one_pass", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
