// The second stage of a split reduction, which several rungs launch.
#include "reduce/reduce_dim/partial.cuh"

#include "device/ptx/barrier.h"

namespace warpsmith {
namespace {

// Merges the states of threads that differ in threadIdx.y alone; those with threadIdx.y == 0 get the results.
// blockDim.y is a power of two, the block has kReduceThreads threads.
template <class R>
__device__ __forceinline__ typename R::State merge_along_y(const typename R::State& state,
                                                           typename R::State (&shared)[kReduceThreads]) {
  const int tid = threadIdx.y * blockDim.x + threadIdx.x;
  shared[tid] = state;
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) shared[tid] = R::merge(shared[tid], shared[tid + half * blockDim.x]);
  }
  return shared[tid];
}

// Outputs along x, the states of an output along y: every blockDim.y-th for each thread.
template <class R, class T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_dim_partial_kernel(const ReduceDimArgs a, const int64_t output_stride, const int64_t split_stride) {
  __shared__ typename R::State shared[kReduceThreads];
  ptx::wait_for_previous_grid();
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < a.outputs();
       first += int64_t{gridDim.x} * blockDim.x) {
    const int64_t output = first + threadIdx.x;
    const auto* partial = static_cast<const typename R::State*>(a.partial) + output * output_stride;
    typename R::State state = R::empty(0.0f);
    if (output < a.outputs()) {
#pragma unroll 8
      for (int64_t i = threadIdx.y; i < a.splits; i += blockDim.y) state = R::merge(state, partial[i * split_stride]);
    }
    state = merge_along_y<R>(state, shared);
    if (threadIdx.y == 0 && output < a.outputs()) write_joined<R, T>(a, output, state);
    __syncthreads();  // the next outputs overwrite shared
  }
}

}  // namespace

void launch_partial(const ReduceDimArgs& a, int along_x, int64_t output_stride, int64_t split_stride,
                    cudaStream_t stream) {
  const dim3 block(along_x, kReduceThreads / along_x);
  const unsigned grid = row_grid(ceil_div(a.outputs(), along_x));
  visit_reducer(a, [&]<class R, class T>() {
    launch<&reduce_dim_partial_kernel<R, T>>({.grid = grid, .block = block, .early = true}, stream, a, output_stride,
                                             split_stride);
  });
}

}  // namespace warpsmith
