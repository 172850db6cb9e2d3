// Sum of everything, without shared memory: threads add to one place in memory, one after another.
//   A thread adds up a few values, then sends its sum by an atomic. Whoever comes first is added first, so that the
//   result may differ in its last bits from run to run, however precise the total. Bound: the one address, which takes
//   one addition at a time.
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kValues = 16;

__global__ void __launch_bounds__(kThreads) reduce_sum_atomic_kernel(const float* x, double* total, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kValues) + threadIdx.x;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    if (first + i * kThreads < n) sum += x[first + i * kThreads];
  }
  if (first < n) atomicAdd(total, static_cast<double>(sum));
}

__global__ void reduce_sum_atomic_round_kernel(const double* total, float* y) { *y = static_cast<float>(*total); }

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  double* total = static_cast<double*>(a.workspace);
  check_cuda(cudaMemsetAsync(total, 0, sizeof(double), stream), "cudaMemsetAsync");
  const auto grid = static_cast<unsigned>(ceil_div(a.n, kThreads * kValues));
  warpsmith::launch<&reduce_sum_atomic_kernel>({grid, kThreads}, stream, static_cast<const float*>(a.x), total, a.n);
  warpsmith::launch<&reduce_sum_atomic_round_kernel>({1, 1}, stream, total, static_cast<float*>(a.y));
}

const Register<ReduceSumArgs> registered{"atomic", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
