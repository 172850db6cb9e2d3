// Sum of everything in a single launch.
//   Against `pack`: as many blocks as the GPU holds walk over the tiles, and the last one to finish adds up what they
//   all leave, in the order of the blocks: the same bits every time, whoever is last. Nothing is read through L1, and the
//   blocks take their places while the kernel before ends. Bound: DRAM; on short inputs the launch, and the way of the
//   sums through L2 at the end.
#include "device/start_early.h"
#include "reduce/one_pass.cuh"
#include "reduce/reduce_sum/dtypes.cuh"

namespace warpsmith {
namespace {

// Decoding fp8 in integer arithmetic takes more registers.
template <class T, class Tile>
constexpr int resident_blocks() {
#if defined(__CUDA_ARCH__) && !WARPSMITH_HAS_FP8_CVT
  return kIsFp8<T> ? Tile::blocks / 2 : Tile::blocks;
#else
  return Tile::blocks;
#endif
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, resident_blocks<T, Tile>())
    reduce_sum_one_pass_kernel(const Span<T, kPack<T>> x, const Joint<Total<T>> joint, Result<T>* y) {
  start_early();
  Total<T> total{};
  for (int64_t start = int64_t{blockIdx.x} * Tile::size; start < x.accesses; start += int64_t{gridDim.x} * Tile::size) {
    // load
    Pack<T> packs[Tile::packs];
    load_strided<Cache::streaming>(packs, x, start + threadIdx.x, Tile::threads, start + Tile::size <= x.accesses);

    // add
    ThreadSum<T, Wide<T>, kPack<T>> sum;
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) sum.add(packs[i]);
    total += sum.total();
  }
  if (blockIdx.x == 0 && threadIdx.x < x.ends()) total += as_total(x.end(threadIdx.x));

  // join
  if (join_blocks<Tile::threads>(total, joint)) *y = rounded<Result<T>>(total);
}

const char* takes(const ReduceSumArgs& a) {
  return a.accumulator == Accumulator::wide ? nullptr : "accumulates in f32";
}

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  visit_elements(a.dtype, [&]<class T>() {
    const Span<T, kPack<T>> x(a.x, a.n);
    const int64_t blocks = SumTile::grid(x.accesses, a.sm_count);
    warpsmith::launch<&reduce_sum_one_pass_kernel<T, SumTile>>(
        {.grid = static_cast<unsigned>(blocks), .block = SumTile::threads, .early = true}, stream, x,
        make_joint<Total<T>>(a.workspace, blocks, stream), static_cast<Result<T>*>(a.y));
  });
}

const Register<ReduceSumArgs> registered{"one_pass", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
