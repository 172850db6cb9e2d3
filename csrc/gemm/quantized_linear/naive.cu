// Linear layer of packed weights, a thread per result.
//   Every code is looked up by itself. Bound: a load, a shift and a conversion for each product.
#include "device/convert.h"
#include "gemm/quantized_linear/quantized_linear.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) quantized_linear_naive_kernel(const QuantizedLinearArgs a) {
  const int64_t units = (a.k + kUnit - 1) / kUnit;
  const int unit_words = kUnit * kUnit * a.bits / 32;
  const T* scales = static_cast<const T*>(a.scales);
  const int64_t total = a.m * a.n, step = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < total; at += step) {
    const int64_t i = at / a.n, j = at % a.n;
    const T* x = static_cast<const T*>(a.x) + i * a.x_stride;
    float sum = 0.0f;
    for (int64_t group = 0; group < a.groups; ++group) {
      const int zero = a.zeros != nullptr ? a.zeros[group * a.n + j] : a.bits == 4 ? 8 : 0;
      float of_group = 0.0f, part = 0.0f;
      for (int64_t l = group * a.group; l < (group + 1) * a.group; ++l) {
        if (l % kUnit == 0) {  // long groups lose less in parts
          of_group += part;
          part = 0.0f;
        }
        const CodePlace place = code_place(static_cast<int>(j % kUnit), static_cast<int>(l % kUnit), a.bits);
        const uint32_t word = a.words[(j / kUnit * units + l / kUnit) * unit_words + place.word];
        const int code = a.bits == 4 ? static_cast<int>(word >> place.bit & 15)
                                     : static_cast<int>(static_cast<int8_t>(word >> place.bit));
        part = fmaf(to_float(x[l]), static_cast<float>(code - zero), part);
      }
      sum = fmaf(of_group + part, to_float(scales[group * a.n + j]), sum);
    }
    if (a.bias != nullptr) sum += to_float(static_cast<const T*>(a.bias)[j]);
    static_cast<T*>(a.d)[at] = from_float<T>(sum);
  }
}

const char* takes(const QuantizedLinearArgs&) { return nullptr; }

void launch(const QuantizedLinearArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const unsigned grid = row_grid(ceil_div(a.m * a.n, kThreads));
    warpsmith::launch<&quantized_linear_naive_kernel<T>>({grid, kThreads}, stream, a);
  });
}

bool suits(const QuantizedLinearArgs& a) {
  constexpr int64_t kMost = 1 << 24;  // products
  return a.k == 0 || a.m * a.n <= kMost / a.k;
}

const Register<QuantizedLinearArgs> registered{"naive", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
