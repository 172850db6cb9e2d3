// Group norm backward of channels-last tensors in passes over memory, as `split`.
//   Against `naive`: slabs of neighbouring positions, all their channels in 128-bit accesses. A thread stays with one
//   pack of channels, keeps the sums of each in registers, and meets the other lanes of its block in shared memory.
//   Bound: DRAM, with x read three times and grad twice where they do not fit in L2.
#include "norm/group_norm_backward/passes.cuh"

namespace warpsmith {
namespace {

template <class T>
struct Operands {
  const T* grad;  // [n, spatial, c], as x and dx
  const T* x;
  T* dx;
  PerChannel<T> weight, bias;
  const Normaliser* normalisers;  // [n, groups]
  const GradSums* means;          // [n, groups]
  ColumnTiling tiling;
  Pieces slabs;
};

// Where a block stands: slab `slab` of sample `sample`, and its thread's first channel.
template <class T>
struct Slab {
  int64_t sample, start;  // start: of the thread's pack at the slab's first position
  int positions, channel;

  __device__ Slab(const Operands<T>& v, int64_t block, int tile, const Column& column)
      : sample(block / v.slabs.count), channel((tile * v.tiling.columns + column.at) * kPack<T>) {
    const int64_t position = (block - sample * v.slabs.count) * v.slabs.length;
    positions = static_cast<int>(min(v.slabs.length, v.tiling.spatial - position));
    start = (sample * v.tiling.spatial + position) * v.tiling.c + channel;
  }

  __device__ int64_t group(const Operands<T>& v, int i) const {
    return sample * v.tiling.groups + (channel + i) / v.tiling.group_channels;
  }
};

template <class T>
__device__ __forceinline__ void load_channels(ChannelGrad (&channels)[kPack<T>], const Operands<T>& v,
                                              const Slab<T>& slab) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const int64_t channel = slab.channel + i;
    channels[i] = {v.normalisers[slab.group(v, i)], v.weight[channel], v.bias[channel]};
  }
}

template <class T, class Activation>
__global__ void __launch_bounds__(kTileThreads)
    group_norm_backward_nhwc_split_sums_kernel(const Operands<T> v, const PartialSums to) {
  constexpr int kWidth = kPack<T>;
  __shared__ GradSums lanes[kTileThreads * kWidth];  // [lanes, columns * kWidth]
  const Column column(v.tiling, blockIdx.y);
  const Slab<T> slab(v, blockIdx.x, blockIdx.y, column);
  const int channels = column.columns * kWidth;

  // sums of the thread's positions
  if (column.active) {
    ChannelGrad own[kWidth];
    load_channels(own, v, slab);
    GradSums sums[kWidth] = {};
    for (int position = column.lane; position < slab.positions; position += column.lanes) {
      Pack<T> raw_grad, raw_x;
      float grad[kWidth], x[kWidth];
      load<Cache::streaming>(raw_grad, v.grad + slab.start + position * v.tiling.c);
      load<Cache::streaming>(raw_x, v.x + slab.start + position * v.tiling.c);
      to_float(grad, raw_grad);
      to_float(x, raw_x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) own[i].template add_to<Activation, T>(sums[i], grad[i], x[i]);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) lanes[column.lane * channels + column.at * kWidth + i] = sums[i];
  }
  __syncthreads();

  // over the lanes
  const int64_t first = int64_t{blockIdx.y} * v.tiling.columns * kWidth;
  for (int i = threadIdx.x; i < channels; i += blockDim.x) {
    GradSums sums = lanes[i];
    for (int lane = 1; lane < column.lanes; ++lane) sums = sums + lanes[lane * channels + i];
    to.write(blockIdx.x, first + i, sums);
  }
}

template <class T, class Activation>
__global__ void __launch_bounds__(kTileThreads) group_norm_backward_nhwc_split_kernel(const Operands<T> v) {
  constexpr int kWidth = kPack<T>;
  const Column column(v.tiling, blockIdx.y);
  if (!column.active) return;
  const Slab<T> slab(v, gridDim.x - 1 - blockIdx.x, blockIdx.y, column);  // backwards, into what L2 still holds
  ChannelGrad own[kWidth];
  GradSums means[kWidth];
  load_channels(own, v, slab);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) means[i] = v.means[slab.group(v, i)];
  for (int position = column.lane; position < slab.positions; position += column.lanes) {
    Pack<T> raw_grad, raw_x, dx;
    float grad[kWidth], x[kWidth];
    load<Cache::streaming>(raw_grad, v.grad + slab.start + position * v.tiling.c);
    load<Cache::streaming>(raw_x, v.x + slab.start + position * v.tiling.c);
    to_float(grad, raw_grad);
    to_float(x, raw_x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) grad[i] = own[i].template dx<Activation, T>(grad[i], x[i], means[i]);
    from_float(dx, grad);
    store<Cache::streaming>(v.dx + slab.start + position * v.tiling.c, dx);
  }
}

const char* takes(const GroupNormBackwardArgs& a) { return needs_packed_channels(a); }

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const ColumnTiling tiling(a.shape, a.dtype, kMostColumns);
    const Pieces slabs = pieces_of(a.shape, a.dtype);
    const auto* x = static_cast<const T*>(a.x);
    const GroupStatistics statistics = launch_statistics(x, a.shape, tiling, slabs, a.eps, a.workspace, stream);
    const Operands<T> operands{.grad = static_cast<const T*>(a.grad),
                               .x = x,
                               .dx = static_cast<T*>(a.dx),
                               .weight = PerChannel<T>(a.weight, 1.0f),
                               .bias = PerChannel<T>(a.bias, 0.0f),
                               .normalisers = statistics.groups,
                               .means = means_of(a),
                               .tiling = tiling,
                               .slabs = slabs};
    const PartialSums sums = partial_sums(a, "nhwc_split", slabs.count);
    const LaunchConfig config{
        .grid = dim3(static_cast<unsigned>(a.shape.n * slabs.count), static_cast<unsigned>(tiling.tiles)),
        .block = dim3(tiling.threads())};
    warpsmith::launch<&group_norm_backward_nhwc_split_sums_kernel<T, Activation>>(config, stream, operands, sums);
    launch_means<T>(a, sums, slabs.count, stream);
    warpsmith::launch<&group_norm_backward_nhwc_split_kernel<T, Activation>>(config, stream, operands);
    sum_parameters<T>(a, sums, stream);
  });
}

const Register<GroupNormBackwardArgs> registered{"nhwc_split", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
