// The means over each group, between two passes over memory.
#include "norm/group_norm/backward/passes.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

// A block per group: means of gz * weight * xhat and of gz * weight.
template <class T>
__global__ void __launch_bounds__(kThreads)
    group_norm_backward_means_kernel(GradSums* means, const PartialSums from, const PerChannel<T> weight,
                                     const FastDivide groups, const FastDivide group_channels, int64_t parts,
                                     float inverse_size) {
  __shared__ GradSums partial[kWarp];
  const auto channels = static_cast<int64_t>(group_channels.divisor);  // of a group
  const int64_t row = blockIdx.x, sample = groups.quotient(row);
  const int64_t first = (row - sample * static_cast<int64_t>(groups.divisor)) * channels;
  GradSums sums{};
  for (int64_t i = threadIdx.x; i < parts * channels; i += kThreads) {
    const auto part = static_cast<int64_t>(group_channels.quotient(i));
    const int64_t channel = first + i - part * channels;
    sums = sums + weight[channel] * from.read(sample * parts + part, channel);
  }
  sums = block_sum(sums, partial);
  if (threadIdx.x == 0) means[row] = inverse_size * sums;
}

}  // namespace

void launch_means(const GroupNormBackwardArgs& a, const PartialSums& from, int64_t parts, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    launch<&group_norm_backward_means_kernel<T>>({static_cast<unsigned>(a.shape.rows()), kThreads}, stream, means_of(a),
                                                 from, PerChannel<T>(a.weight, 1.0f), FastDivide(a.shape.groups),
                                                 FastDivide(a.shape.group_channels()), parts,
                                                 1.0f / static_cast<float>(a.shape.row_size()));
  });
}

}  // namespace warpsmith
