// Weighted sum, one element a thread.
//   One value an access, one term after the other. Bound: the number of load instructions.
#include "elementwise/weighted_sum/terms.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void weighted_sum_naive_kernel(const __grid_constant__ WeightedSumArgs a) {
  const int64_t i = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (i < a.n) sum_element<T>(a, i);
}

const char* takes(const WeightedSumArgs&) { return nullptr; }

void launch(const WeightedSumArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(ceil_div(a.n, kThreads)));
    warpsmith::launch<&weighted_sum_naive_kernel<T>>({grid, kThreads}, stream, a);
  });
}

const Register<WeightedSumArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
