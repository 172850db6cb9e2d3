// Gradients of a convolution: a thread per value of dx, a thread per weight, a block per channel of dbias.
//   Every product loads both of its factors. Any shape. Bound: the number of load instructions.
#include "device/convert.h"
#include "device/fast_divide.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"
#include "vision/conv1d_group_norm/add_piece.cuh"
#include "vision/conv1d_group_norm/backward/conv1d_backward.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    conv1d_backward_naive_kernel(const Conv1dBackwardArgs a, const FastDivide length, const FastDivide channels,
                                 int64_t count) {
  const Conv1dShape& s = a.shape;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += int64_t{gridDim.x} * kThreads) {
    const int64_t line = length.quotient_as(at), sample = channels.quotient_as(line);
    const int64_t m = at - line * s.length, i = line - sample * s.c_in;
    const T* grad = static_cast<const T*>(a.grad) + sample * s.c_out * s.length;  // [c_out, length]
    float sum = 0.0f, piece = 0.0f;
    for (int64_t o = 0; o < s.c_out; ++o) {
      const T* weight = static_cast<const T*>(a.weight) + (o * s.c_in + i) * s.taps;  // [taps]
      for (int t = 0; t < s.taps; ++t) {
        const int64_t from = m - t + s.before();
        // a weight that is not finite leaves its mark beyond the signal, too
        const float value = from < 0 || from >= s.length ? 0.0f : to_float(grad[o * s.length + from]);
        piece = fmaf(to_float(weight[t]), value, piece);
      }
      add_piece(sum, piece);
    }
    static_cast<T*>(a.dx)[at] = from_float<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    conv1d_backward_naive_weight_kernel(const Conv1dBackwardArgs a, int64_t count) {
  const Conv1dShape& s = a.shape;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += int64_t{gridDim.x} * kThreads) {
    const int t = static_cast<int>(at % s.taps), shift = t - s.before();
    const int64_t i = at / s.taps % s.c_in, o = at / s.taps / s.c_in;
    double sum = 0.0;
    for (int64_t sample = 0; sample < s.n; ++sample) {
      const T* grad = static_cast<const T*>(a.grad) + (sample * s.c_out + o) * s.length;  // [length]
      const T* x = static_cast<const T*>(a.x) + (sample * s.c_in + i) * s.length;         // [length]
      for (int64_t l = 0; l < s.length; ++l) {
        const bool inside = l + shift >= 0 && l + shift < s.length;
        const float value = inside ? to_float(x[l + shift]) : 0.0f;
        sum += static_cast<double>(to_float(grad[l])) * static_cast<double>(value);
      }
    }
    static_cast<T*>(a.dweight)[at] = from_float<T>(static_cast<float>(sum));
  }
}

void launch(const Conv1dBackwardArgs& a, cudaStream_t stream) {
  const Conv1dShape& s = a.shape;
  const int64_t values = s.n * s.c_in * s.length, weights = s.c_out * s.c_in * s.taps;
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&conv1d_backward_naive_kernel<T>>({row_grid(ceil_div(values, kThreads)), kThreads}, stream, a,
                                                        FastDivide(s.length), FastDivide(s.c_in), values);
    warpsmith::launch<&conv1d_backward_naive_weight_kernel<T>>({row_grid(ceil_div(weights, kThreads)), kThreads},
                                                               stream, a, weights);
  });
  sum_channels(a, stream);
}

const Register<Conv1dBackwardArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
