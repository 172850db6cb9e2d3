// Reduction of rows, a block per row, 128-bit accesses.
//   Against `shuffle`: one load brings 16 bytes, and a thread has four on their way before it adds the first. A row
//   that does not start at 16 bytes is read value by value, in the same order. The variance of a row that fits takes
//   two passes over registers. Blocks take their places while the kernel before ends, unless all rows are at work at
//   once. Bound: DRAM, where rows are long enough to fill a block and many enough to fill the machine.
#include "reduce/reduce_dim/registers.cuh"

namespace warpsmith {
namespace {

constexpr int kUnroll = 4;

template <class R, class T, class Aligned>
__global__ void __launch_bounds__(kReduceThreads) reduce_dim_pack_kernel(const ReduceDimArgs a) {
  __shared__ typename R::State partial[kWarp];
  start_early();
  for (int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.stride_outer;  // [n]

    // take
    typename R::State state = start<R>(x);
    take_span<R, Aligned, kUnroll>(state, x, 0, a.n, threadIdx.x, blockDim.x);

    // merge
    state = merge_warps<R>(merge_spans<R>(state, kWarp), partial);
    if (threadIdx.x == 0) write<R, T>(a, row, state);
    __syncthreads();  // the next row overwrites partial
  }
}

// Blocks a multiprocessor is to hold at least, 0 for the compiler's choice: that leaves room for four, in which values
// that are read one by one spill.
template <class Aligned>
constexpr int kHeldBlocks = Aligned::value ? 0 : 1;

// The same in two passes, for rows of at most `packs` packs a thread.
template <class R, class T, class Aligned, int packs>
__global__ void __launch_bounds__(kReduceThreads, kHeldBlocks<Aligned>)
    reduce_dim_pack_registers_kernel(const ReduceDimArgs a) {
  __shared__ float partial[2][kWarp];
  const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  start_early();
  int turn = 0;  // what one sum is read from, the next does not overwrite
  const auto sum_up = [&](float x) {
    x = warp_reduce(x);
    if (warps == 1) return x;
    if (lane == 0) partial[turn][threadIdx.x / kWarp] = x;
    __syncthreads();
    x = warp_reduce(lane < warps ? partial[turn][lane] : 0.0f);
    turn ^= 1;
    return x;
  };
  for (int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.stride_outer;  // [n]
    const float m2 = squared_deviations<packs, Aligned>(x, static_cast<int>(a.n), threadIdx.x, blockDim.x, sum_up);
    if (threadIdx.x == 0) static_cast<T*>(a.y)[row] = from_float<T>(m2 / a.divisor);
  }
}

void launch(const ReduceDimArgs& a, cudaStream_t stream) {
  visit_aligned_reducer(a, has_aligned_rows(a), [&]<class R, class T, class Aligned>() {
    const int64_t packs = ceil_div(a.n, kPack<T>);
    const unsigned threads = row_threads(packs, kUnroll, kReduceThreads);
    // Where all rows are at work at once, blocks that start early lie two to a place here and none there.
    const LaunchConfig config{.grid = row_grid(a.outer), .block = threads, .early = !rows_at_once(a.outer)};
    if constexpr (R::deviates) {
      const auto held = [&]<int count>() {
        warpsmith::launch<&reduce_dim_pack_registers_kernel<R, T, Aligned, count>>(config, stream, a);
      };
      if (visit_held_packs(packs, threads, held)) return;
    }
    warpsmith::launch<&reduce_dim_pack_kernel<R, T, Aligned>>(config, stream, a);
  });
}

const Register<ReduceDimArgs> registered{"pack", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
