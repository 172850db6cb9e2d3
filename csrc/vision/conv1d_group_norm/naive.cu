// Convolution, a thread per value of the result; then group norm and activation, a block per group.
//   Every product loads both of its factors. Any shape. Bound: the number of load instructions.
#include "device/convert.h"
#include "device/fast_divide.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"
#include "vision/conv1d_group_norm/add_piece.cuh"
#include "vision/conv1d_group_norm/conv1d_group_norm.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    conv1d_group_norm_naive_kernel(const Conv1dGroupNormArgs a, const FastDivide length, const FastDivide channels,
                                   int64_t count) {
  const Conv1dShape& s = a.shape;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += int64_t{gridDim.x} * kThreads) {
    const int64_t line = length.quotient_as(at), sample = channels.quotient_as(line);
    const int64_t l = at - line * s.length, o = line - sample * s.c_out;
    const T* x = static_cast<const T*>(a.x) + sample * s.c_in * s.length;     // [c_in, length]
    const T* weight = static_cast<const T*>(a.weight) + o * s.c_in * s.taps;  // [c_in, taps]
    float sum = 0.0f, piece = a.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(a.bias)[o]);
    for (int64_t i = 0; i < s.c_in; ++i) {
      for (int t = 0; t < s.taps; ++t) {
        const int64_t from = l + t - s.before();
        // a weight that is not finite leaves its mark beyond the signal, too
        const float value = from < 0 || from >= s.length ? 0.0f : to_float(x[i * s.length + from]);
        piece = fmaf(to_float(weight[i * s.taps + t]), value, piece);
      }
      add_piece(sum, piece);
    }
    static_cast<T*>(a.h)[at] = from_float<T>(sum);
  }
}

void launch(const Conv1dGroupNormArgs& a, cudaStream_t stream) {
  const Conv1dShape& s = a.shape;
  const int64_t count = s.n * s.c_out * s.length;
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&conv1d_group_norm_naive_kernel<T>>({row_grid(ceil_div(count, kThreads)), kThreads}, stream, a,
                                                          FastDivide(s.length), FastDivide(s.c_out), count);
  });
  normalise_groups(a, stream);
}

const Register<Conv1dGroupNormArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
