// Dot product in a single launch.
//   Against `pack`: as many blocks as the GPU holds walk over the tiles, and the last one to finish adds up what they
//   all leave, in the order of the blocks: the same bits every time, whoever is last. Nothing is read through L1, and the
//   blocks take their places while the kernel before ends. Bound: DRAM; on short inputs the launch, and the way of the
//   sums through L2 at the end.
#include "device/start_early.h"
#include "reduce/dot/thread_dot.cuh"
#include "reduce/one_pass.cuh"

namespace warpsmith {
namespace {

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    dot_one_pass_kernel(const Span<T, kPack<T>> x, const Span<T, kPack<T>> y, const Joint<double> joint, T* out) {
  start_early();
  double total = 0.0;
  for (int64_t start = int64_t{blockIdx.x} * Tile::size; start < x.accesses; start += int64_t{gridDim.x} * Tile::size) {
    // load
    const bool whole = start + Tile::size <= x.accesses;
    Pack<T> a[Tile::packs], b[Tile::packs];
    load_strided<Cache::streaming>(a, x, start + threadIdx.x, Tile::threads, whole);
    load_strided<Cache::streaming>(b, y, start + threadIdx.x, Tile::threads, whole);

    // multiply and add
    ThreadDot<T, kPack<T>> sum;
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) sum.add(a[i], b[i]);
    total += sum.total();
  }
  total += dot_of_ends(x, y);

  // join
  if (join_blocks<Tile::threads>(total, joint)) *out = rounded<T>(total);
}

const char* takes(const DotArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return needs_f32_accumulator(a);
}

void launch(const DotArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const Span<T, kPack<T>> x(a.x, a.n), y(a.y, a.n);
    const int64_t blocks = DotTile::grid(x.accesses, a.sm_count);
    warpsmith::launch<&dot_one_pass_kernel<T, DotTile>>(
        {.grid = static_cast<unsigned>(blocks), .block = DotTile::threads, .early = true}, stream, x, y,
        make_joint<double>(a.workspace, blocks, stream), static_cast<T*>(a.out));
  });
}

const Register<DotArgs> registered{"one_pass", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
