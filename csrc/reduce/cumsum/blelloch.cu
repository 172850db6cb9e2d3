// Cumulative sum, a block per sequence, up and down a tree in shared memory.
//   Against `double_buffered`: sums are built towards the root and handed down again, which takes 2n additions instead
//   of n log n; padding keeps the strided tree accesses off each other's banks. Bound: twice as many barriers as
//   levels.
// Blelloch 1990, "Prefix Sums and Their Applications", https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 2 * kThreads;
constexpr int kBanks = 32;

__device__ constexpr int padded(int i) { return i + i / kBanks; }

template <class T>
__global__ void __launch_bounds__(kThreads) cumsum_blelloch_kernel(const CumsumArgs a) {
  using Sum = SumOf<T>;
  __shared__ Sum tree[padded(kTile)];
  const int tid = threadIdx.x;
  for (int64_t index = blockIdx.x; index < a.sequences(); index += gridDim.x) {
    const Sequence<T> sequence(a, index);
    CarryOf<T> carry = 0;
    for (int64_t first = 0; first < a.n; first += kTile) {
      // load
      Sum own[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int64_t j = first + k * kThreads + tid;
        own[k] = j < a.n ? sequence.load(j) : Sum{0};
        tree[padded(k * kThreads + tid)] = own[k];
      }

      // up: every node becomes the sum of its leaves
      int stride = 1;
      for (int nodes = kTile / 2; nodes > 0; nodes /= 2) {
        __syncthreads();
        if (tid < nodes) {
          const int left = padded(stride * (2 * tid + 1) - 1), right = padded(stride * (2 * tid + 2) - 1);
          tree[right] = tree[left] + tree[right];
        }
        stride *= 2;
      }
      __syncthreads();
      const Sum total = tree[padded(kTile - 1)];
      __syncthreads();
      if (tid == 0) tree[padded(kTile - 1)] = 0;

      // down: every node becomes the sum of the leaves before it
      for (int nodes = 1; nodes < kTile; nodes *= 2) {
        stride /= 2;
        __syncthreads();
        if (tid < nodes) {
          const int left = padded(stride * (2 * tid + 1) - 1), right = padded(stride * (2 * tid + 2) - 1);
          const Sum sum = tree[left];
          tree[left] = tree[right];
          tree[right] = tree[right] + sum;
        }
      }
      __syncthreads();

      // write
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int64_t j = first + k * kThreads + tid;
        if (j < a.n) sequence.store(j, static_cast<Sum>(carry) + (tree[padded(k * kThreads + tid)] + own[k]));
      }
      carry += total;
      __syncthreads();  // the next tile overwrites the tree
    }
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  visit_scanned(a, [&]<class T>() {
    warpsmith::launch<&cumsum_blelloch_kernel<T>>({row_grid(a.sequences()), kThreads}, stream, a);
  });
}

const Register<CumsumArgs> registered{"blelloch", /*min_sm=*/80, needs_short, launch};

}  // namespace
}  // namespace warpsmith
