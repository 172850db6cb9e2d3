// GEMV, a thread per row.
//   Every thread walks along a row of its own, a value at a time: neighbours in a warp read addresses a row apart. Takes
//   weights of any strides. Bound: each load brings 32 sectors of which it uses one value.
#include "device/convert.h"
#include "gemm/gemv/gemv.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 64;  // products added up in f32; their sums in f64, as one thread's long sum would drift

template <class T>
__global__ void __launch_bounds__(kThreads) gemv_naive_kernel(const GemvArgs a) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= a.m) return;
  const T* weights = static_cast<const T*>(a.a) + row * a.a_row;            // [k], a.a_col apart
  const T* x = static_cast<const T*>(a.x) + int64_t{blockIdx.y} * a.x_row;  // [k]

  double total = 0.0;
  for (int64_t start = 0; start < a.k; start += kRun) {
    const int64_t end = start + kRun < a.k ? start + kRun : a.k;
    float sum = 0.0f;
    for (int64_t i = start; i < end; ++i) sum = fmaf(to_float(weights[i * a.a_col]), to_float(x[i]), sum);
    total += sum;
  }
  static_cast<T*>(a.y)[int64_t{blockIdx.y} * a.m + row] = from_float<T>(static_cast<float>(total));
}

const char* takes(const GemvArgs& a) {
  if (const char* reason = needs_countable(a)) return reason;
  return needs_f32_accumulator(a);
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const auto blocks = static_cast<unsigned>((a.m + kThreads - 1) / kThreads);
    warpsmith::launch<&gemv_naive_kernel<T>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

const Register<GemvArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
