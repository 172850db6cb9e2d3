// The second launch of `mma` and `wgmma` where k is cut into slices.
#include "device/convert.h"
#include "device/start_early.h"
#include "device/vec.h"
#include "gemm/quantized_linear/quantized_linear.h"
#include "host/launch.h"

namespace warpsmith {
namespace {

constexpr int kSumThreads = 128, kSumWidth = 4;

// Partial sums in the order of the slices, the scale of a group that is all of k, and the bias.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    quantized_linear_sum_kernel(const QuantizedLinearArgs a, const int slices) {
  start_early();
  const int64_t total = a.m * a.n, at = (int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kSumWidth;
  if (at >= total) return;
  float sum[kSumWidth] = {};
#pragma unroll 8
  for (int slice = 0; slice < slices; ++slice) {
    Vec<float, kSumWidth> part;
    load(part, a.partial + slice * total + at);
#pragma unroll
    for (int i = 0; i < kSumWidth; ++i) sum[i] += part[i];
  }
  if (a.groups == 1) {
    const T* scales = static_cast<const T*>(a.scales) + at % a.n;
#pragma unroll
    for (int i = 0; i < kSumWidth; ++i) sum[i] *= to_float(scales[i]);
  }
  if (a.bias != nullptr) {
    const T* bias = static_cast<const T*>(a.bias) + at % a.n;
#pragma unroll
    for (int i = 0; i < kSumWidth; ++i) sum[i] += to_float(bias[i]);
  }
  Vec<T, kSumWidth> out;
  from_float(out, sum);
  store(static_cast<T*>(a.d) + at, out);
}

}  // namespace

void sum_quantized_slices(const QuantizedLinearArgs& a, int slices, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(ceil_div(a.m * a.n, kSumThreads * kSumWidth));
  dispatch_float(a.dtype, [&]<class T>() {
    const LaunchConfig config{.grid = grid, .block = kSumThreads, .early = true};
    launch<&quantized_linear_sum_kernel<T>>(config, stream, a, slices);
  });
}

}  // namespace warpsmith
