// Reduction of few long rows, several blocks per row.
//   Against `pack`: a row is cut into chunks, so that few rows fill the machine; a second kernel joins the chunks'
//   states in a fixed order, so the result is the same from run to run; it starts while the first ends. How many chunks
//   there are depends on the number of rows, unless the call asks for an result that does not. Bound: DRAM, and the
//   second kernel.
#include "reduce/reduce_dim/partial.cuh"

namespace warpsmith {
namespace {

constexpr int kUnroll = 4;

template <class R, class T, class Aligned>
__global__ void __launch_bounds__(kReduceThreads) reduce_dim_split_kernel(const ReduceDimArgs a) {
  __shared__ typename R::State shared[kWarp];
  start_early();
  for (int64_t item = blockIdx.x; item < a.outer * a.splits; item += gridDim.x) {
    const int64_t row = item / a.splits, split = item - row * a.splits;
    const T* x = static_cast<const T*>(a.x) + row * a.stride_outer;  // [n]
    const int64_t begin = split * a.chunk, end = min(begin + a.chunk, a.n);

    // take
    typename R::State state = start<R>(x);
    take_span<R, Aligned, kUnroll>(state, x, begin, end, threadIdx.x, kReduceThreads);

    // merge
    state = merge_warps<R>(merge_spans<R>(state, kWarp), shared);
    if (threadIdx.x == 0) {
      if (a.splits == 1) {
        write<R, T>(a, row, state);
      } else {
        static_cast<typename R::State*>(a.partial)[item] = state;
      }
    }
    __syncthreads();  // the next chunk overwrites shared
  }
}

void launch(const ReduceDimArgs& a, cudaStream_t stream) {
  visit_aligned_reducer(a, has_aligned_rows(a), [&]<class R, class T, class Aligned>() {
    warpsmith::launch<&reduce_dim_split_kernel<R, T, Aligned>>(
        {.grid = row_grid(a.outer * a.splits), .block = kReduceThreads, .early = true}, stream, a);
    if (a.splits > 1) launch_partial(a, /*along_x=*/1, a.splits, 1, stream);
  });
}

const Register<ReduceDimArgs> registered{"split", /*min_sm=*/80, needs_rows, launch, splits_rows};

}  // namespace
}  // namespace warpsmith
