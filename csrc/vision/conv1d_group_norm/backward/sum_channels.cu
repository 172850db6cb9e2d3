// The gradient of a bias: sums over samples and positions, a block per channel.
//   Sums in f64, of which there are few. Bound: the lines of memory that short signals fill in part.
#include "device/block.h"
#include "device/fast_divide.h"
#include "host/launch.h"
#include "row/rows.h"
#include "vision/conv1d_group_norm/backward/conv1d_backward.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    conv1d_backward_sum_channels_kernel(const Conv1dBackwardArgs a, const FastDivide length) {
  __shared__ BlockReduceStorage<double, kThreads> partial;
  const Conv1dShape& s = a.shape;
  const int64_t channel = blockIdx.x;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < s.positions(); i += kThreads) {
    const int64_t sample = length.quotient_as(i);
    sum += to_float(static_cast<const T*>(a.grad)[(sample * s.c_out + channel) * s.length + i - sample * s.length]);
  }
  sum = block_reduce<kThreads>(sum, partial);
  if (threadIdx.x == 0) static_cast<T*>(a.dbias)[channel] = from_float<T>(static_cast<float>(sum));
}

}  // namespace

void sum_channels(const Conv1dBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&conv1d_backward_sum_channels_kernel<T>>({static_cast<unsigned>(a.shape.c_out), kThreads}, stream,
                                                               a, FastDivide(a.shape.length));
  });
}

}  // namespace warpsmith
