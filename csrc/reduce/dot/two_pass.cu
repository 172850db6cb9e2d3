// Dot product in two launches that overlap.
//   Against `one_pass`: what the blocks leave is added up by a launch of its own, which takes its place while they end, as
//   they did while the kernel before ended. No block draws a ticket, and none has to be there with all others: two waves
//   share the tiles out more evenly among multiprocessors that early blocks filled unevenly. Needs launches that overlap
//   (sm_90), and data that is read for longer than the host takes for a second launch. Bound: DRAM.
#include "device/start_early.h"
#include "reduce/dot/walk_dot.cuh"
#include "reduce/launch_total.cuh"
#include "reduce/two_pass.h"

namespace warpsmith {
namespace {

// `partial`: [blocks], the sum of each.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    dot_two_pass_kernel(const Span<T, kPack<T>> x, const Span<T, kPack<T>> y, const Walk walk, double* partial) {
  __shared__ BlockReduceStorage<double, Tile::threads> shared;
  start_early();
  const double total = block_reduce<Tile::threads>(dot_of_walk<Tile, double>(x, y, walk), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

const char* takes(const DotArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return needs_f32_accumulator(a);
}

bool suits(const DotArgs& a) { return 2 * a.n * size_of(a.dtype) >= kTwoPassBytes; }

void launch(const DotArgs& a, cudaStream_t stream) {
  using Tile = TwoPass<2>::Tile;
  dispatch_float(a.dtype, [&]<class T>() {
    const Span<T, kPack<T>> x(a.x, a.n), y(a.y, a.n);
    const Walk walk = TwoPass<2>::walk(x.accesses, a.sm_count);
    auto* partial = static_cast<double*>(a.workspace);
    const LaunchConfig config{.grid = static_cast<unsigned>(walk.blocks), .block = Tile::threads, .early = true};
    warpsmith::launch<&dot_two_pass_kernel<T, Tile>>(config, stream, x, y, walk, partial);
    launch_total<T, Tile::threads>(partial, walk.blocks, a.out, stream, /*early=*/true);
  });
}

const Register<DotArgs> registered{"two_pass", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
