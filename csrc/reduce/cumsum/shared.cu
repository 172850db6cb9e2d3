// Cumulative sum, a block per sequence, scanned in shared memory.
//   Against `naive`: a tile of values is scanned in log2(tile) steps, in each of which a value adds the one 1, 2, 4 …
//   places before it; tiles follow each other with a carry. Bound: two barriers a step, and n log n additions.
// Hillis & Steele 1986, "Data Parallel Algorithms", https://doi.org/10.1145/7902.7903
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 512;

template <class T>
__global__ void __launch_bounds__(kThreads) cumsum_shared_kernel(const CumsumArgs a) {
  using Sum = SumOf<T>;
  __shared__ Sum tile[kThreads];
  const int tid = threadIdx.x;
  for (int64_t index = blockIdx.x; index < a.sequences(); index += gridDim.x) {
    const Sequence<T> sequence(a, index);
    CarryOf<T> carry = 0;
    for (int64_t first = 0; first < a.n; first += kThreads) {
      // load
      const int64_t j = first + tid;
      tile[tid] = j < a.n ? sequence.load(j) : Sum{0};
      __syncthreads();

      // scan
      for (int distance = 1; distance < kThreads; distance *= 2) {
        const Sum before = tid >= distance ? tile[tid - distance] : Sum{0};
        __syncthreads();  // all have read what is overwritten now
        if (tid >= distance) tile[tid] = before + tile[tid];
        __syncthreads();
      }

      // write
      if (j < a.n) sequence.store(j, static_cast<Sum>(carry) + tile[tid]);
      carry += tile[kThreads - 1];
      __syncthreads();  // the next tile overwrites this one
    }
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  visit_scanned(a, [&]<class T>() {
    warpsmith::launch<&cumsum_shared_kernel<T>>({row_grid(a.sequences()), kThreads}, stream, a);
  });
}

const Register<CumsumArgs> registered{"shared", /*min_sm=*/80, needs_short, launch};

}  // namespace
}  // namespace warpsmith
