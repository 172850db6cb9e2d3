// Cumulative sum, a block per sequence, scanned in two buffers of shared memory.
//   Against `shared`: a step reads one buffer and writes the other, so that nothing is overwritten that another thread
//   still reads: one barrier a step instead of two. Bound: the barriers, and n log n additions.
// Harris, Sengupta & Owens 2007, "Parallel Prefix Sum (Scan) with CUDA", GPU Gems 3, chapter 39,
// https://developer.nvidia.com/gpugems/gpugems3/part-vi-gpu-computing/chapter-39-parallel-prefix-sum-scan-cuda
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 512;

template <class T>
__global__ void __launch_bounds__(kThreads) cumsum_double_buffered_kernel(const CumsumArgs a) {
  using Sum = SumOf<T>;
  __shared__ Sum tile[2][kThreads];
  const int tid = threadIdx.x;
  for (int64_t index = blockIdx.x; index < a.sequences(); index += gridDim.x) {
    const Sequence<T> sequence(a, index);
    CarryOf<T> carry = 0;
    for (int64_t first = 0; first < a.n; first += kThreads) {
      // load
      const int64_t j = first + tid;
      Sum sum = j < a.n ? sequence.load(j) : Sum{0};
      int buffer = 0;
      tile[buffer][tid] = sum;
      __syncthreads();

      // scan
      for (int distance = 1; distance < kThreads; distance *= 2) {
        if (tid >= distance) sum = tile[buffer][tid - distance] + sum;
        buffer ^= 1;
        tile[buffer][tid] = sum;
        __syncthreads();
      }

      // write
      if (j < a.n) sequence.store(j, static_cast<Sum>(carry) + sum);
      carry += tile[buffer][kThreads - 1];
      __syncthreads();  // the next tile overwrites this one
    }
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  visit_scanned(a, [&]<class T>() {
    warpsmith::launch<&cumsum_double_buffered_kernel<T>>({row_grid(a.sequences()), kThreads}, stream, a);
  });
}

const Register<CumsumArgs> registered{"double_buffered", /*min_sm=*/80, needs_short, launch};

}  // namespace
}  // namespace warpsmith
