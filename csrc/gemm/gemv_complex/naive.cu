// Complex GEMV, a thread per row.
//   A pair at a time, weights of any strides. Bound: each load brings 32 sectors of which it uses one part of a value.
#include "device/convert.h"
#include "gemm/gemv_complex/gemv_complex.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 32;  // products added up in f32; their sums in f64, as one thread's long sum would drift

template <class T>
__global__ void __launch_bounds__(kThreads) gemv_complex_naive_kernel(const GemvComplexArgs a) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= a.m) return;
  const T* weights = static_cast<const T*>(a.a) + row * a.a_row;            // [k, 2]
  const T* x = static_cast<const T*>(a.x) + int64_t{blockIdx.y} * a.k * 2;  // [k, 2]
  T* y = static_cast<T*>(a.y) + (int64_t{blockIdx.y} * a.m + row) * 2;      // [2]

  double real = 0.0, imaginary = 0.0;
  for (int64_t start = 0; start < a.k; start += kRun) {
    const int64_t end = start + kRun < a.k ? start + kRun : a.k;
    float real_sum = 0.0f, imaginary_sum = 0.0f;
    for (int64_t i = start; i < end; ++i) {
      const float a_real = to_float(weights[i * a.a_col]), a_imaginary = to_float(weights[i * a.a_col + a.a_part]);
      const float x_real = to_float(x[2 * i]), x_imaginary = to_float(x[2 * i + 1]);
      real_sum = fmaf(a_real, x_real, fmaf(-a_imaginary, x_imaginary, real_sum));
      imaginary_sum = fmaf(a_real, x_imaginary, fmaf(a_imaginary, x_real, imaginary_sum));
    }
    real += real_sum;
    imaginary += imaginary_sum;
  }
  y[0] = from_float<T>(static_cast<float>(real));
  y[1] = from_float<T>(static_cast<float>(imaginary));
}

void launch(const GemvComplexArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const auto blocks = static_cast<unsigned>((a.m + kThreads - 1) / kThreads);
    warpsmith::launch<&gemv_complex_naive_kernel<T>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

const Register<GemvComplexArgs> registered{"naive", /*min_sm=*/80, needs_countable, launch};

}  // namespace
}  // namespace warpsmith
