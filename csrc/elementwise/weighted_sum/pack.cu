// Weighted sum, one 128-bit access a thread and term.
//   Against `naive`: one load brings 16 bytes. Bound: latency, as the number of terms is known only when the kernel runs
//   and each is waited for before the next is asked for.
#include "elementwise/weighted_sum/terms.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void weighted_sum_pack_kernel(const __grid_constant__ WeightedSumArgs a) {
  constexpr int kWidth = kPack<T>;
  const int64_t pack = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (pack < a.n / kWidth) {
    float sums[kWidth] = {}, values[kWidth];
#pragma unroll 1
    for (int k = 0; k < a.terms; ++k) {
      Pack<T> x;
      load(x, static_cast<const T*>(a.x[k]) + pack * kWidth);
      to_float(values, x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] = add_term(sums[i], k, a.weights[k], values[i]);
    }
    Pack<T> y;
    from_float(y, sums);
    store(static_cast<T*>(a.y) + pack * kWidth, y);
  }
  sum_rest<T>(a);
}

void launch(const WeightedSumArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(ceil_div(a.n, int64_t{kThreads} * kPack<T>)));
    warpsmith::launch<&weighted_sum_pack_kernel<T>>({grid, kThreads}, stream, a);
  });
}

const Register<WeightedSumArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
