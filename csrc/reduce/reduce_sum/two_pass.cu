// Sum of everything in two launches that overlap.
//   Against `one_pass`: what the blocks leave is added up by a launch of its own, which takes its place while they end, as
//   they did while the kernel before ended. No block draws a ticket, and none has to be there with all others: two waves
//   share the tiles out more evenly among multiprocessors that early blocks filled unevenly. Needs launches that overlap
//   (sm_90), and data that is read for longer than the host takes for a second launch. Bound: DRAM.
#include "device/start_early.h"
#include "reduce/launch_total.cuh"
#include "reduce/reduce_sum/walk_sum.cuh"
#include "reduce/two_pass.h"

namespace warpsmith {
namespace {

// `partial`: [blocks], the sum of each.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, resident_blocks<T, Tile>())
    reduce_sum_two_pass_kernel(const Span<T, kPack<T>> x, const Walk walk, Total<T>* partial) {
  __shared__ BlockReduceStorage<Total<T>, Tile::threads> shared;
  start_early();
  const Total<T> total = block_reduce<Tile::threads>(sum_of_walk<Tile, Total<T>>(x, walk), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

bool suits(const ReduceSumArgs& a) { return a.n * size_of(a.dtype) >= kTwoPassBytes; }

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  using Tile = TwoPass<1>::Tile;
  visit_elements(a.dtype, [&]<class T>() {
    const Span<T, kPack<T>> x(a.x, a.n);
    const Walk walk = TwoPass<1>::walk(x.accesses, a.sm_count);
    auto* partial = static_cast<Total<T>*>(a.workspace);
    const LaunchConfig config{.grid = static_cast<unsigned>(walk.blocks), .block = Tile::threads, .early = true};
    warpsmith::launch<&reduce_sum_two_pass_kernel<T, Tile>>(config, stream, x, walk, partial);
    launch_total<Result<T>, Tile::threads>(partial, walk.blocks, a.y, stream, /*early=*/true);
  });
}

const Register<ReduceSumArgs> registered{"two_pass", /*min_sm=*/90, needs_wide_accumulator, launch, suits};

}  // namespace
}  // namespace warpsmith
