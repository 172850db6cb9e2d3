// GEMV with 8-bit weights, a thread per row.
//   A value at a time, weights of any strides; the sum is scaled once, at its end. Bound: each load brings 32 sectors of
//   which it uses one value.
#include "device/convert.h"
#include "gemm/elements.cuh"
#include "gemm/gemv_scaled/gemv_scaled.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 64;  // products added up in f32; their sums in f64, as one thread's long sum would drift

template <class W, class X>
__global__ void __launch_bounds__(kThreads) gemv_scaled_naive_kernel(const SkinnyArgs a, const int64_t a_col) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= a.m) return;
  const W* weights = static_cast<const W*>(a.a) + row * a.a_row;            // [k], a_col apart
  const X* x = static_cast<const X*>(a.x) + int64_t{blockIdx.y} * a.x_row;  // [k]

  double total = 0.0;
  for (int64_t start = 0; start < a.k; start += kRun) {
    const int64_t end = start + kRun < a.k ? start + kRun : a.k;
    float sum = 0.0f;
    for (int64_t i = start; i < end; ++i) sum = fmaf(value_of(weights[i * a_col]), to_float(x[i]), sum);
    total += sum;
  }
  const float scaled = static_cast<float>(total) * a.scale[row * a.scale_step];
  static_cast<X*>(a.y)[int64_t{blockIdx.y} * a.y_row + row] = from_float<X>(scaled);
}

void launch(const GemvScaledArgs& a, cudaStream_t stream) {
  dispatch_scaled(a, [&]<class W, class X>() {
    const auto blocks = static_cast<unsigned>((a.call.m + kThreads - 1) / kThreads);
    warpsmith::launch<&gemv_scaled_naive_kernel<W, X>>({{blocks, static_cast<unsigned>(a.call.vectors)}, kThreads},
                                                       stream, a.call, a.a_col);
  });
}

const Register<GemvScaledArgs> registered{"naive", /*min_sm=*/80, needs_countable, launch};

}  // namespace
}  // namespace warpsmith
