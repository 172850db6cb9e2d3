// Reduction along a dimension, a block per output, joined by a tree in shared memory.
//   One value an access, any strides. Bound: eight barriers per output, and the number of load instructions.
// Harris 2007, "Optimizing Parallel Reduction in CUDA",
// https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf
#include "reduce/reduce_dim/reduce.cuh"

namespace warpsmith {
namespace {

template <class R, class T>
__global__ void __launch_bounds__(kReduceThreads) reduce_dim_naive_kernel(const ReduceDimArgs a) {
  __shared__ typename R::State tree[kReduceThreads];
  const int tid = threadIdx.x;
  for (int64_t output = blockIdx.x; output < a.outputs(); output += gridDim.x) {
    const T* x = input_of<T>(a, output);  // [n], stride_n elements apart

    // take
    typename R::State state = a.n == 0 ? R::empty(0.0f) : start<R>(x);
    for (int64_t j = tid; j < a.n; j += kReduceThreads) take_one<R>(state, x[j * a.stride_n], static_cast<uint32_t>(j));

    // merge
    tree[tid] = state;
    for (int half = kReduceThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (tid < half) tree[tid] = R::merge(tree[tid], tree[tid + half]);
    }
    if (tid == 0) write<R, T>(a, output, tree[0]);
    __syncthreads();  // the next output overwrites the tree
  }
}

void launch(const ReduceDimArgs& a, cudaStream_t stream) {
  visit_reducer(a, [&]<class R, class T>() {
    warpsmith::launch<&reduce_dim_naive_kernel<R, T>>({row_grid(a.outputs()), kReduceThreads}, stream, a);
  });
}

const Register<ReduceDimArgs> registered{"naive", /*min_sm=*/80, needs_short, launch};

}  // namespace
}  // namespace warpsmith
