// The gradients of weight and bias, from what rungs leave of each channel.
#include "norm/group_norm/backward/sums.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 512;

// dw (y = 0) and db (y = 1): a block is [lanes, columns] threads: lane by lane down the parts, then a tree over the
// lanes, always in the same order. As there are parts without end, only a batch of them is added up in f32.
template <class T>
__global__ void __launch_bounds__(kThreads)
    group_norm_backward_parameters_kernel(const ChannelOutput<T> dw, const ChannelOutput<T> db, const PartialSums from,
                                          int columns) {
  constexpr int kBatch = 8;
  __shared__ double sums[kThreads];  // [lanes, columns]
  const ChannelOutput<T> to = blockIdx.y == 0 ? dw : db;
  if (!to.wanted()) return;
  const int tid = threadIdx.x, lanes = kThreads / columns;
  const int column = tid % columns, lane = tid / columns;
  const int64_t channel = int64_t{blockIdx.x} * columns + column;
  const float* data = from.data + blockIdx.y * from.parts * from.c;  // [parts, c]
  double sum = 0.0;
  if (channel < from.c) {
    for (int64_t first = lane; first < from.parts; first += kBatch * lanes) {
      float batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t part = first + i * lanes;
        batch[i] = part < from.parts ? data[part * from.c + channel] : 0.0f;
      }
#pragma unroll
      for (int half = kBatch / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; ++i) batch[i] += batch[i + half];
      }
      sum += batch[0];
    }
  }
  sums[tid] = sum;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) sums[tid] += sums[tid + half * columns];
    __syncthreads();
  }
  if (lane == 0 && channel < from.c) to.write(channel, static_cast<float>(sums[tid]));
}

}  // namespace

void sum_parameters(const GroupNormBackwardArgs& a, const PartialSums& from, cudaStream_t stream) {
  if (a.dw == nullptr && a.db == nullptr) return;
  int lanes = 1;
  while (lanes < 64 && lanes * 8 < from.parts) lanes *= 2;
  const int columns = kThreads / lanes;
  const dim3 grid(static_cast<unsigned>(ceil_of(a.shape.c, columns)), 2);
  dispatch_float(a.dtype, [&]<class T>() {
    launch<&group_norm_backward_parameters_kernel<T>>({grid, kThreads}, stream, ChannelOutput<T>(a.dw, a.weight.dtype),
                                                      ChannelOutput<T>(a.db, a.bias.dtype), from, columns);
  });
}

}  // namespace warpsmith
