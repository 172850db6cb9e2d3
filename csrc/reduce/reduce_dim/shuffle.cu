// Reduction along a dimension, a block per output, joined by warp shuffles.
//   Against `naive`: lanes exchange registers instead of shared memory, so one barrier replaces eight. Bound: the
//   number of load instructions, one value each.
#include "reduce/reduce_dim/reduce.cuh"

namespace warpsmith {
namespace {

template <class R, class T>
__global__ void __launch_bounds__(kReduceThreads) reduce_dim_shuffle_kernel(const ReduceDimArgs a) {
  __shared__ typename R::State partial[kWarp];
  for (int64_t output = blockIdx.x; output < a.outputs(); output += gridDim.x) {
    const T* x = input_of<T>(a, output);  // [n], stride_n elements apart

    // take
    typename R::State state = start<R>(x);
    for (int64_t j = threadIdx.x; j < a.n; j += kReduceThreads) {
      take_one<R>(state, x[j * a.stride_n], static_cast<uint32_t>(j));
    }

    // merge
    state = merge_warps<R>(merge_lanes(state, kWarp, Merge<R>{}), partial);
    if (threadIdx.x == 0) write<R, T>(a, output, state);
    __syncthreads();  // the next output overwrites partial
  }
}

void launch(const ReduceDimArgs& a, cudaStream_t stream) {
  visit_reducer(a, [&]<class R, class T>() {
    warpsmith::launch<&reduce_dim_shuffle_kernel<R, T>>({row_grid(a.outputs()), kReduceThreads}, stream, a);
  });
}

const Register<ReduceDimArgs> registered{"shuffle", /*min_sm=*/80, needs_short, launch};

}  // namespace
}  // namespace warpsmith
