// The second launch of `mma` and `wgmma` where k is cut into slices.
#include "device/convert.h"
#include "device/vec.h"
#include "gemm/quantized_linear/quantized_linear.h"
#include "host/launch.h"

namespace warpsmith {
namespace {

constexpr int kSumThreads = 128, kSumWidth = 4;

// Partial sums in the order of the slices, and the bias.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    quantized_linear_sum_kernel(const QuantizedLinearArgs a, const int slices) {
  const int64_t total = a.m * a.n, at = (int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kSumWidth;
  if (at >= total) return;
  float sum[kSumWidth] = {};
  for (int slice = 0; slice < slices; ++slice) {
    Vec<float, kSumWidth> part;
    load(part, a.partial + slice * total + at);
#pragma unroll
    for (int i = 0; i < kSumWidth; ++i) sum[i] += part[i];
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
  dispatch_float(a.dtype,
                 [&]<class T>() { launch<&quantized_linear_sum_kernel<T>>({grid, kSumThreads}, stream, a, slices); });
}

}  // namespace warpsmith
