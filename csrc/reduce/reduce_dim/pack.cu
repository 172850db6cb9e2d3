// Reduction of rows, a block per row, 128-bit accesses.
//   Against `shuffle`: one load brings 16 bytes, and a thread has four on their way before it adds the first. A row
//   that does not start at 16 bytes is read value by value, in the same order. Bound: DRAM, where rows are long enough
//   to fill a block and many enough to fill the machine.
#include "reduce/reduce_dim/reduce.cuh"

namespace warpsmith {
namespace {

constexpr int kUnroll = 4;

template <class R, class T, class Aligned>
__global__ void __launch_bounds__(kReduceThreads) reduce_dim_pack_kernel(const ReduceDimArgs a) {
  __shared__ typename R::State partial[kWarp];
  for (int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.stride_outer;  // [n]

    // take
    typename R::State state = start<R>(x);
    take_span<R, Aligned, kUnroll>(state, x, 0, a.n, threadIdx.x, blockDim.x);

    // merge
    state = merge_block<R>(state, partial);
    if (threadIdx.x == 0) write<R, T>(a, row, state);
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const ReduceDimArgs& a, cudaStream_t stream) {
  visit_aligned_reducer(a, has_aligned_rows(a), [&]<class R, class T, class Aligned>() {
    const unsigned threads = row_threads(ceil_div(a.n, kPack<T>), kUnroll, kReduceThreads);
    warpsmith::launch<&reduce_dim_pack_kernel<R, T, Aligned>>({row_grid(a.outer), threads}, stream, a);
  });
}

const Register<ReduceDimArgs> registered{"pack", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
