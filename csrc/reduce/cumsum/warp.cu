// Cumulative sum, a block per sequence, scanned by warp shuffles.
//   Against `blelloch`: lanes exchange registers, so that a tile needs one barrier, for one sum per warp, instead of
//   eighteen. Bound: the number of load instructions, one value each.
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

template <class T>
__global__ void __launch_bounds__(kThreads) cumsum_warp_kernel(const CumsumArgs a) {
  using Sum = SumOf<T>;
  __shared__ Sum totals[2][kWarps];  // of warps, in turns: a tile may start while another warp reads the one before
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  int turn = 0;
  for (int64_t index = blockIdx.x; index < a.sequences(); index += gridDim.x) {
    const Sequence<T> sequence(a, index);
    CarryOf<T> carry = 0;
    for (int64_t first = 0; first < a.n; first += kThreads) {
      const int64_t j = first + tid;
      const Sum sum = warp_scan(j < a.n ? sequence.load(j) : Sum{0});
      if (lane == kWarp - 1) totals[turn][warp] = sum;
      __syncthreads();
      Sum before = 0, total = 0;  // of the tile, before this warp and in all
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp) before = total;
        total += totals[turn][w];
      }
      if (j < a.n) sequence.store(j, static_cast<Sum>(carry) + (before + sum));
      carry += total;
      turn ^= 1;
    }
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  visit_scanned(
      a, [&]<class T>() { warpsmith::launch<&cumsum_warp_kernel<T>>({row_grid(a.sequences()), kThreads}, stream, a); });
}

const Register<CumsumArgs> registered{"warp", /*min_sm=*/80, needs_short, launch};

}  // namespace
}  // namespace warpsmith
