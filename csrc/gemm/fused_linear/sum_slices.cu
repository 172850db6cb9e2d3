// The partial sums of slices of k, added up in their order and finished. Several rungs launch it.
#include "gemm/fused_linear/sum_slices.h"

#include "device/start_early.h"
#include "device/warp.h"
#include "gemm/fused_linear/ends.cuh"
#include "host/launch.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128, kWidth = 4;

// Behind a kernel that lets the next one take its place early.
template <class T, Ends ends>
__global__ void __launch_bounds__(kThreads)
    fused_linear_sum_slices_kernel(const __grid_constant__ FusedArgs p, const int slices) {
  start_early();
  const int64_t total = p.m * p.n, first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (first >= total) return;
  const float* partial = static_cast<const float*>(p.workspace) + first;
  float sums[kWidth] = {}, none[kWidth];
#pragma unroll 4
  for (int slice = 0; slice < slices; ++slice) {
    Vec<float, kWidth> values;
    load(values, partial + slice * total);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
  }
  const int64_t row = first / p.n;
  if (ends == Ends::gradient && first % p.n == 0) {
    float sum = 0.0f;
    for (int slice = 0; slice < slices; ++slice) sum += p.partial_rows[slice * p.m + row];
    leave_row_sum<T>(p, row, sum);
  }
  unsigned most = leave<ends, T>(p, sums, none, row, first % p.n);
  if (p.amax == nullptr) return;
  const bool shared = p.n % (kWarp * kWidth) == 0;  // a row, by all lanes, of which none has left
  if (shared) most = warp_reduce(most, Max{});
  if (!shared || threadIdx.x % kWarp == 0) note_largest<T>(p.amax + row, most);
}

}  // namespace

// Rows are whole packs of 16 bytes of 16 bits: four neighbours lie in one.
void sum_slices(const FusedArgs& p, int slices, cudaStream_t stream) {
  const LaunchConfig config{
      .grid = static_cast<unsigned>(ceil_div(ceil_div(p.m * p.n, kWidth), kThreads)), .block = kThreads, .early = true};
  if (p.ends == Ends::add) {
    return launch<&fused_linear_sum_slices_kernel<float, Ends::add>>(config, stream, p, slices);
  }
  const auto of_type = [&]<class T>() {
    p.ends == Ends::gradient ? launch<&fused_linear_sum_slices_kernel<T, Ends::gradient>>(config, stream, p, slices)
                             : launch<&fused_linear_sum_slices_kernel<T, Ends::epilogue>>(config, stream, p, slices);
  };
  p.dtype == Dtype::f16 ? of_type.template operator()<f16>() : of_type.template operator()<bf16>();
}

}  // namespace warpsmith
