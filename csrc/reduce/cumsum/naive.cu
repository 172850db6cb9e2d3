// Cumulative sum, a thread per sequence.
//   Nothing is shared and every value is read and written once. Bound: the latency of one load and one addition after
//   another, and rows whose neighbours in a warp lie far apart.
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) cumsum_naive_kernel(const CumsumArgs a) {
  for (int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x; index < a.sequences();
       index += int64_t{gridDim.x} * kThreads) {
    const Sequence<T> sequence(a, index);
    CarryOf<T> sum = 0;
    for (int64_t j = 0; j < a.n; ++j) {
      sum += sequence.load(j);
      sequence.store(j, static_cast<SumOf<T>>(sum));
    }
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  visit_scanned(a, [&]<class T>() {
    warpsmith::launch<&cumsum_naive_kernel<T>>({row_grid(ceil_div(a.sequences(), kThreads)), kThreads}, stream, a);
  });
}

const Register<CumsumArgs> registered{"naive", /*min_sm=*/80, needs_short, launch};

}  // namespace
}  // namespace warpsmith
